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
	// ownLease is what a benchmark uses: the library's own renewal if it has one, else benchLease.
	ownLease   = time.Duration(-1)
	benchLease = 30 * time.Second
)

// A library is one of the lock libraries, connected to the server.
type library interface {
	// describe gives its module and the settings that matter.
	describe() (module, settings string)
	// acquire tries once if wait is 0; lease 0 asks for the library's renewal.
	// The error is errBusy if somebody else has the lock all the time.
	acquire(key string, wait, lease time.Duration) (held, error)
	force(key string) error
	taken(key string) (bool, error)
	get(ctx context.Context, key string) (int64, error)
	set(ctx context.Context, key string, value int64) error
}

// A held lock is what acquire gives.
type held interface {
	renew(lease time.Duration) error
	release() error
	stillHeld() (bool, error)
}
