package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

// leeway is how long a task may continue to wait after the end of a run.
const leeway = 1500 * time.Millisecond

// run lets tasks acquire and release the lock repeatedly, and writes a record of each grant.
func run(lib library, file string, tasks int, during, work time.Duration, names []string) (int, error) {
	keys, err := choose(names)
	if err != nil {
		return 0, err
	}
	records := make([][]record, tasks)
	var faults faults
	var all sync.WaitGroup
	end := time.Now().Add(during)
	for task := range tasks {
		all.Go(func() {
			draw := keys(task)
			for time.Now().Before(end) {
				number, key := draw()
				requested := monotonic()
				lock, err := lib.acquire(key, time.Until(end.Add(leeway)), ownLease)
				if errors.Is(err, errBusy) {
					return
				} else if err != nil {
					faults.add(err)
					continue
				}
				granted := monotonic()
				if work > 0 {
					time.Sleep(work)
				}
				records[task] = append(records[task], record{requested, granted, monotonic(), label(number, task)})
				if err := lock.release(); err != nil {
					faults.add(err)
				}
			}
		})
	}
	all.Wait()
	grants, err := write(file, records...)
	return grants, errors.Join(err, faults.err())
}

// choose returns a function that returns, for each task, the function that draws its next key and the key's number.
func choose(names []string) (func(task int) func() (int, string), error) {
	if len(names) == 0 {
		return nil, badArgument("too few arguments")
	}
	if count, ok := strings.CutPrefix(names[0], "zipf:"); ok {
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 {
			return nil, badArgument(count + " is not a number of keys")
		}
		sums := make([]float64, n)
		sum := 0.0
		for i := range sums {
			sum += 1 / float64(i+1)
			sums[i] = sum
		}
		return func(task int) func() (int, string) {
			random := rand.New(rand.NewPCG(1, uint64(task)))
			return func() (int, string) {
				number := sort.SearchFloat64s(sums, random.Float64()*sum)
				return number, "z" + strconv.Itoa(number)
			}
		}, nil
	}
	return func(task int) func() (int, string) {
		number := task % len(names)
		return func() (int, string) { return number, names[number] }
	}, nil
}

// hold acquires locks with the library's renewal, and holds them for a time.
func hold(lib library, count int, during time.Duration) error {
	locks := make([]held, count)
	err := inParallel(count, func(i int) (err error) {
		locks[i], err = lib.acquire("h"+strconv.Itoa(i), forever, 0)
		return err
	})
	if errors.Is(err, errUnsupported) {
		return fmt.Errorf("%w: there is no renewal", errUnsupported)
	} else if err == nil {
		time.Sleep(during)
	}
	return errors.Join(err, inParallel(count, func(i int) error {
		if locks[i] == nil {
			return nil
		}
		return locks[i].release()
	}))
}

func inParallel(count int, do func(i int) error) error {
	var faults faults
	var all sync.WaitGroup
	next := make(chan int)
	for range min(count, poolSize) {
		all.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					faults.add(err)
				}
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	all.Wait()
	return faults.err()
}

// waiters are tasks that each acquire the lock once.
type waiters struct {
	all     sync.WaitGroup
	records []record
	faults  faults
}

func wait(lib library, key string, count int) (*waiters, error) {
	group := &waiters{records: make([]record, count)}
	var started sync.WaitGroup
	started.Add(count)
	for task := range count {
		group.all.Go(func() {
			requested := monotonic()
			started.Done()
			lock, err := lib.acquire(key, forever, ownLease)
			if err != nil {
				group.faults.add(err)
				return
			}
			granted := monotonic()
			group.records[task] = record{requested, granted, monotonic(), label(0, task)}
			if err := lock.release(); err != nil {
				group.faults.add(err)
			}
		})
	}
	started.Wait()
	// This attempt is sent after those of the waiters. If it is refused, they have most likely been refused, too.
	lock, err := lib.acquire(key, 0, ownLease)
	if err == nil {
		err = errors.Join(fmt.Errorf("nobody held %s", key), lock.release())
	} else if errors.Is(err, errBusy) {
		err = nil
	}
	return group, err
}

func drain(groups []*waiters, file string) (int, error) {
	var err error
	var records [][]record
	for _, group := range groups {
		group.all.Wait()
		err = errors.Join(err, group.faults.err())
		records = append(records, group.records)
	}
	grants, failed := write(file, records...)
	return grants, errors.Join(failed, err)
}

// faults keeps the first error and the number of errors.
type faults struct {
	mu    sync.Mutex
	count int
	first error
}

func (f *faults) add(err error) {
	f.mu.Lock()
	if f.count == 0 {
		f.first = err
	}
	f.count++
	f.mu.Unlock()
	// Without a pause, a server that is down would get requests in a tight loop.
	time.Sleep(10 * time.Millisecond)
}

func (f *faults) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count == 0 {
		return nil
	}
	return fmt.Errorf("%d failed, the first: %w", f.count, f.first)
}
