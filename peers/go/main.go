// Command peer runs Go's lock libraries for the Rust workspace. It implements the line protocol of ../README.md.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

var libraries = map[string]func(url string) (library, error){
	"redsync":     newRedsync,
	"bsm":         newBsm,
	"etcd-mutex":  newEtcdMutex,
	"etcd-txn":    newEtcdTxn,
	"rueidislock": newRueidislock,
}

func main() {
	if len(os.Args) != 3 || libraries[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: peer redsync|bsm|rueidislock|etcd-mutex|etcd-txn URL")
		os.Exit(2)
	}
	lib, err := libraries[os.Args[1]](os.Args[2])
	if err == nil {
		err = warmUp(lib)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	module, settings := lib.describe()
	fmt.Printf("ready %s %s | %s\n", os.Args[1], version(module), settings)

	p := &peer{lib: lib, held: map[string]held{}}
	// Not a Scanner, because a line with a key for each of many tasks may exceed its limit.
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadString('\n')
		if words := strings.Fields(line); len(words) > 0 {
			go p.answer(words)
		}
		if err == io.EOF {
			return
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func warmUp(lib library) error {
	key := "warm:" + strconv.Itoa(os.Getpid())
	for range 100 {
		// A single attempt, because with it every library distinguishes an error from a busy lock.
		lock, err := lib.acquire(key, 0, ownLease)
		if err != nil {
			return fmt.Errorf("cannot acquire a first lock: %w", err)
		}
		if err := lock.release(); err != nil {
			return fmt.Errorf("cannot release a first lock: %w", err)
		}
	}
	return nil
}

func version(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				return strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return "unknown"
}

type peer struct {
	lib library

	mu      sync.Mutex
	held    map[string]held
	waiting []*waiters

	out sync.Mutex
}

func (p *peer) answer(words []string) {
	reply, err := "ok", error(nil)
	if len(words) < 2 {
		err = errors.New("a number and a verb are expected")
	} else {
		reply, err = p.do(words[1], args(words[2:]))
	}
	if errors.Is(err, errBusy) {
		reply = "busy"
	} else if err != nil {
		reply = "error " + strings.Join(strings.Fields(err.Error()), " ")
	}
	p.out.Lock()
	defer p.out.Unlock()
	fmt.Println(words[0], reply)
}

func (p *peer) do(verb string, a args) (reply string, err error) {
	// Recovers from a missing argument, or one that is not a number.
	defer func() {
		if bad, ok := recover().(badArgument); ok {
			err = bad
		}
	}()
	switch verb {
	case "acquire":
		lock, err := p.lib.acquire(a.word(0), a.millis(1), a.millis(2))
		if err != nil {
			return "", err
		}
		p.remember(a.word(0), lock)
		return "ok", nil
	case "renew":
		lock, err := p.recall(a.word(0))
		if err != nil {
			return "", err
		}
		return "ok", lock.renew(a.millis(1))
	case "release":
		lock, err := p.recall(a.word(0))
		if err != nil {
			return "", err
		}
		p.forget(a.word(0), lock)
		return "ok", lock.release()
	case "force":
		return "ok", p.lib.force(a.word(0))
	case "held":
		lock, err := p.recall(a.word(0))
		if err != nil {
			return "", err
		}
		return yesOrNo(lock.stillHeld())
	case "owner":
		return yesOrNo(p.lib.taken(a.word(0)))
	case "count":
		return "ok", count(p.lib, a.word(0), a.word(1), a.number(2), a.number(3))
	case "crash":
		return "", syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "run":
		work := time.Duration(a.number(3)) * time.Microsecond
		return granted(run(p.lib, a.word(0), a.number(1), a.millis(2), work, a[4:]))
	case "hold":
		return "ok", hold(p.lib, a.number(0), a.millis(1))
	case "waiters":
		group, err := wait(p.lib, a.word(0), a.number(1))
		p.mu.Lock()
		p.waiting = append(p.waiting, group)
		p.mu.Unlock()
		return "ok", err
	case "drain":
		p.mu.Lock()
		groups := p.waiting
		p.waiting = nil
		p.mu.Unlock()
		return granted(drain(groups, a.word(0)))
	default:
		return "", fmt.Errorf("unknown verb %s", verb)
	}
}

func (p *peer) remember(key string, lock held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[key] = lock
}

func (p *peer) recall(key string) (held, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lock := p.held[key]; lock != nil {
		return lock, nil
	}
	return nil, fmt.Errorf("%s is not held here", key)
}

func (p *peer) forget(key string, lock held) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Another command may have acquired the lock anew since it was recalled.
	if p.held[key] == lock {
		delete(p.held, key)
	}
}

// count increments a counter under the lock, for the interop suite. Without exclusion, increments are lost.
func count(lib library, key, counter string, workers, times int) error {
	ctx := context.Background()
	failed := make(chan error, workers)
	for range workers {
		go func() {
			failed <- func() error {
				for range times / workers {
					lock, err := lib.acquire(key, forever, ownLease)
					if err != nil {
						return err
					}
					value, err := lib.get(ctx, counter)
					if err != nil {
						return err
					}
					if err := lib.set(ctx, counter, value+1); err != nil {
						return err
					}
					if err := lock.release(); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	var err error
	for range workers {
		err = errors.Join(err, <-failed)
	}
	return err
}

func yesOrNo(yes bool, err error) (string, error) {
	if yes {
		return "ok yes", err
	}
	return "ok no", err
}

func granted(grants int, err error) (string, error) {
	return "ok " + strconv.Itoa(grants), err
}

type args []string

type badArgument string

func (bad badArgument) Error() string { return string(bad) }

func (a args) word(i int) string {
	if i >= len(a) {
		panic(badArgument("too few arguments"))
	}
	return a[i]
}

func (a args) number(i int) int {
	n, err := strconv.Atoi(a.word(i))
	if err != nil || n < 0 {
		panic(badArgument(a[i] + " is not a number"))
	}
	return n
}

func (a args) millis(i int) time.Duration {
	return time.Duration(a.number(i)) * time.Millisecond
}
