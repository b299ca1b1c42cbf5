package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

const poolSize = 64

// goredis is the client that redsync and bsm use, with the operations that neither library offers.
type goredis struct{ *redis.Client }

func connectGoredis(url string) (goredis, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return goredis{}, err
	}
	options.PoolSize = poolSize
	// Many tasks may queue for a connection, and must not fail because of that.
	options.PoolTimeout = 30 * time.Second
	return goredis{redis.NewClient(options)}, nil
}

func (r goredis) pool() string {
	return fmt.Sprintf("pool of %d, go-redis %s", poolSize, version("github.com/redis/go-redis/v9"))
}

func (r goredis) force(key string) error {
	return r.Del(context.Background(), key).Err()
}

func (r goredis) taken(key string) (bool, error) {
	n, err := r.Exists(context.Background(), key).Result()
	return n > 0, err
}

func (r goredis) get(ctx context.Context, key string) (int64, error) {
	value, err := r.Get(ctx, key).Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return value, err
}

func (r goredis) set(ctx context.Context, key string, value int64) error {
	return r.Set(ctx, key, value, 0).Err()
}

// within limits a wait. Both libraries stop waiting when the context ends.
func within(wait time.Duration) (context.Context, context.CancelFunc) {
	if wait == forever {
		// bsm gives up after one lease unless the context has a deadline.
		wait = 24 * time.Hour
	}
	return context.WithTimeout(context.Background(), wait)
}
