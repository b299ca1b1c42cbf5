package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// The library adds a prefix to every key. This is the default prefix.
const rueidisPrefix = "rueidislock"

type rueidisLibrary struct{ rueidislock.Locker }

func newRueidislock(url string) (library, error) {
	options, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   options,
		KeyPrefix:      rueidisPrefix,
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	return rueidisLibrary{locker}, err
}

func (l rueidisLibrary) describe() (module, settings string) {
	return "github.com/redis/rueidis",
		"lease 5 s renewed after 2.5 s (default), woken by client-side caching, KeyMajority 1, NoLoopTracking, one connection"
}

func (l rueidisLibrary) acquire(key string, wait, lease time.Duration) (held, error) {
	if lease > 0 {
		return nil, fmt.Errorf("%w: rueidislock always renews", errUnsupported)
	}
	if wait == 0 {
		ctx, release, err := l.TryWithContext(context.Background(), key)
		if errors.Is(err, rueidislock.ErrNotLocked) {
			return nil, errBusy
		} else if err != nil {
			return nil, err
		}
		return &rueidisLock{ctx, release}, nil
	}
	// Not a context with a deadline, because the deadline would also end the lock, and not only the wait.
	parent, giveUp := context.WithCancel(context.Background())
	if wait != forever {
		timer := time.AfterFunc(wait, giveUp)
		defer timer.Stop()
	}
	ctx, release, err := l.WithContext(parent, key)
	if err == nil && parent.Err() == nil {
		return &rueidisLock{ctx, func() { release(); giveUp() }}, nil
	}
	if err == nil {
		release()
	}
	if parent.Err() != nil {
		err = errBusy
	}
	giveUp()
	return nil, err
}

func (l rueidisLibrary) force(key string) error {
	// Takes the lock over. Because of NoLoopTracking, a holder in this program would not be notified of a plain DEL,
	// which uses the same connection.
	_, release, err := l.ForceWithContext(context.Background(), key)
	if err == nil {
		release()
	}
	return err
}

func (l rueidisLibrary) taken(key string) (bool, error) {
	return l.do(context.Background(), "EXISTS", rueidisPrefix+":0:"+key).AsBool()
}

func (l rueidisLibrary) get(ctx context.Context, key string) (int64, error) {
	value, err := l.do(ctx, "GET", key).AsInt64()
	if rueidis.IsRedisNil(err) {
		return 0, nil
	}
	return value, err
}

func (l rueidisLibrary) set(ctx context.Context, key string, value int64) error {
	return l.do(ctx, "SET", key, fmt.Sprint(value)).Error()
}

func (l rueidisLibrary) do(ctx context.Context, words ...string) rueidis.RedisResult {
	return l.Client().Do(ctx, l.Client().B().Arbitrary(words...).Build())
}

type rueidisLock struct {
	ctx context.Context
	end context.CancelFunc
}

func (h *rueidisLock) renew(time.Duration) error {
	return fmt.Errorf("%w: rueidislock renews by itself alone", errUnsupported)
}

func (h *rueidisLock) release() error {
	lost := h.ctx.Err()
	h.end()
	if lost != nil {
		return fmt.Errorf("lost before it was released: %w", lost)
	}
	return nil
}

func (h *rueidisLock) stillHeld() (bool, error) {
	return h.ctx.Err() == nil, nil
}
