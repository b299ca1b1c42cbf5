package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"
)

const bsmBackoff = 100 * time.Millisecond

type bsmLibrary struct {
	goredis
	locks *redislock.Client
}

func newBsm(url string) (library, error) {
	client, err := connectGoredis(url)
	return bsmLibrary{client, redislock.New(client.Client)}, err
}

func (l bsmLibrary) describe() (module, settings string) {
	return "github.com/bsm/redislock",
		fmt.Sprintf("lease %v, LinearBackoff of %v (as in its example), %s", benchLease, bsmBackoff, l.pool())
}

func (l bsmLibrary) acquire(key string, wait, lease time.Duration) (held, error) {
	if lease == 0 {
		return nil, fmt.Errorf("%w: bsm/redislock does not renew by itself", errUnsupported)
	}
	if lease == ownLease {
		lease = benchLease
	}
	var lock *redislock.Lock
	var err error
	if wait == 0 {
		lock, err = l.locks.Obtain(context.Background(), key, lease, nil)
	} else {
		ctx, cancel := within(wait)
		defer cancel()
		lock, err = l.locks.Obtain(ctx, key, lease, &redislock.Options{
			RetryStrategy: redislock.LinearBackoff(bsmBackoff),
		})
	}
	if errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, context.DeadlineExceeded) {
		return nil, errBusy
	} else if err != nil {
		return nil, err
	}
	return bsmLock{lock}, nil
}

type bsmLock struct{ *redislock.Lock }

func (h bsmLock) renew(lease time.Duration) error {
	return h.Refresh(context.Background(), lease, nil)
}

func (h bsmLock) release() error {
	return h.Release(context.Background())
}

func (h bsmLock) stillHeld() (bool, error) {
	ttl, err := h.TTL(context.Background())
	return ttl > 0, err
}
