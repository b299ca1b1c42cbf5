package main

import (
	"context"
	"errors"
	"math"
	"time"
)

var (
	errBusy        = errors.New("busy")
	errUnsupported = errors.New("unsupported")
)

const (
	forever = time.Duration(math.MaxInt64)
	// ownLease selects the lease of a benchmark: the library's renewal if it has one, otherwise benchLease.
	ownLease   = time.Duration(-1)
	benchLease = 30 * time.Second
)

// A library is one of the lock libraries, connected to the server.
type library interface {
	// describe returns the library's module and the settings that matter.
	describe() (module, settings string)
	// acquire makes one attempt if wait is 0. Lease 0 selects the library's renewal.
	// The error is errBusy if another owner holds the lock until the wait ends.
	acquire(key string, wait, lease time.Duration) (held, error)
	force(key string) error
	taken(key string) (bool, error)
	get(ctx context.Context, key string) (int64, error)
	set(ctx context.Context, key string, value int64) error
}

// held is an acquired lock.
type held interface {
	renew(lease time.Duration) error
	release() error
	stillHeld() (bool, error)
}
