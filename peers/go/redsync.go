package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
)

type redsyncLibrary struct {
	goredis
	sync *redsync.Redsync
}

func newRedsync(url string) (library, error) {
	client, err := connectGoredis(url)
	return redsyncLibrary{client, redsync.New(pool.NewPool(client.Client))}, err
}

func (l redsyncLibrary) describe() (module, settings string) {
	return "github.com/go-redsync/redsync/v4",
		fmt.Sprintf("lease %v, tries without end every 50 to 250 ms at random (default), %s", benchLease, l.pool())
}

func (l redsyncLibrary) acquire(key string, wait, lease time.Duration) (held, error) {
	if lease == 0 {
		return nil, fmt.Errorf("%w: redsync does not renew by itself", errUnsupported)
	}
	if lease == ownLease {
		lease = benchLease
	}
	mutex := l.sync.NewMutex(key, redsync.WithExpiry(lease), redsync.WithTries(math.MaxInt))
	var err error
	if wait == 0 {
		err = mutex.TryLock()
	} else {
		ctx, cancel := within(wait)
		defer cancel()
		err = mutex.LockContext(ctx)
	}
	// The library returns ErrFailed if the context ends while it sleeps.
	if taken := new(redsync.ErrTaken); errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return nil, errBusy
	} else if err != nil {
		return nil, err
	}
	return &redsyncLock{l, mutex}, nil
}

type redsyncLock struct {
	library redsyncLibrary
	mutex   *redsync.Mutex
}

func (h *redsyncLock) renew(lease time.Duration) error {
	// A mutex extends by the expiry that it was created with.
	mutex := h.library.sync.NewMutex(h.mutex.Name(), redsync.WithExpiry(lease), redsync.WithValue(h.mutex.Value()))
	return refused(mutex.Extend())
}

func (h *redsyncLock) release() error {
	return refused(h.mutex.Unlock())
}

func (h *redsyncLock) stillHeld() (bool, error) {
	// Until, which the documentation prefers, is computed locally. ValidContext asks the server.
	ok, err := h.mutex.ValidContext(context.Background())
	if taken := new(redsync.ErrTaken); errors.As(err, &taken) {
		err = nil
	}
	return ok, err
}

func refused(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("not the owner any more")
	}
	return err
}
