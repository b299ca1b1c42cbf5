package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

const (
	// etcdLease is the time to live of a session, in seconds.
	etcdLease = 30
	// etcdTimeout limits a request that does not wait for a lock.
	etcdTimeout = 10 * time.Second
)

// etcdLibrary is the lock recipe of etcd's own client. A session may acquire a lock that it holds already, so each task that
// holds a lock or waits for one has a session of its own. Sessions are kept for later locks.
type etcdLibrary struct {
	client *clientv3.Client

	mu   sync.Mutex
	idle []*concurrency.Session
}

func newEtcdMutex(url string) (library, error) {
	members, ok := strings.CutPrefix(url, "etcd://")
	if !ok {
		return nil, errors.New("the URL does not start with etcd://")
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   strings.Split(members, ","),
		DialTimeout: 5 * time.Second,
		Logger:      zap.NewNop(),
	})
	return &etcdLibrary{client: client}, err
}

func (l *etcdLibrary) describe() (module, settings string) {
	return "go.etcd.io/etcd/client/v3",
		fmt.Sprintf("concurrency.Mutex, sessions of %d s that grow to one per task; one client", etcdLease)
}

func (l *etcdLibrary) acquire(key string, wait, lease time.Duration) (held, error) {
	if lease > 0 {
		return nil, fmt.Errorf("%w: a session always renews", errUnsupported)
	}
	session, err := l.session()
	if err != nil {
		return nil, err
	}
	mutex := concurrency.NewMutex(session, key)
	limit := wait
	if wait == 0 {
		limit = etcdTimeout
	}
	ctx, cancel := within(limit)
	defer cancel()
	if wait == 0 {
		err = mutex.TryLock(ctx)
	} else {
		err = mutex.Lock(ctx)
	}
	switch {
	case err == nil:
		return &etcdLock{l, session, mutex}, nil
	case errors.Is(err, concurrency.ErrLocked):
		l.keep(session)
		return nil, errBusy
	}
	// The lock may have been acquired. It ends with the session.
	go session.Close()
	if wait > 0 && errors.Is(err, context.DeadlineExceeded) {
		err = errBusy
	}
	return nil, err
}

// session returns one that holds no lock.
func (l *etcdLibrary) session() (*concurrency.Session, error) {
	l.mu.Lock()
	for len(l.idle) > 0 {
		last := len(l.idle) - 1
		session := l.idle[last]
		l.idle = l.idle[:last]
		select {
		case <-session.Done():
		default:
			l.mu.Unlock()
			return session, nil
		}
	}
	l.mu.Unlock()
	return concurrency.NewSession(l.client, concurrency.WithTTL(etcdLease))
}

func (l *etcdLibrary) keep(session *concurrency.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = append(l.idle, session)
}

func (l *etcdLibrary) force(key string) error {
	ctx, cancel := within(etcdTimeout)
	defer cancel()
	_, err := l.client.Delete(ctx, key+"/", clientv3.WithPrefix())
	return err
}

func (l *etcdLibrary) taken(key string) (bool, error) {
	ctx, cancel := within(etcdTimeout)
	defer cancel()
	found, err := l.client.Get(ctx, key+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	return err == nil && found.Count > 0, err
}

func (l *etcdLibrary) get(ctx context.Context, key string) (int64, error) {
	found, err := l.client.Get(ctx, key)
	if err != nil || len(found.Kvs) == 0 {
		return 0, err
	}
	return strconv.ParseInt(string(found.Kvs[0].Value), 10, 64)
}

func (l *etcdLibrary) set(ctx context.Context, key string, value int64) error {
	_, err := l.client.Put(ctx, key, strconv.FormatInt(value, 10))
	return err
}

type etcdLock struct {
	library *etcdLibrary
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func (h *etcdLock) renew(time.Duration) error {
	return fmt.Errorf("%w: a session renews by itself alone", errUnsupported)
}

// release deletes the key. The library does not report that the key was deleted before.
func (h *etcdLock) release() error {
	ctx, cancel := within(etcdTimeout)
	defer cancel()
	if err := h.mutex.Unlock(ctx); err != nil {
		go h.session.Close()
		return err
	}
	h.library.keep(h.session)
	return nil
}

// stillHeld asks the server, as the documentation recommends for a transaction that needs the lock.
func (h *etcdLock) stillHeld() (bool, error) {
	ctx, cancel := within(etcdTimeout)
	defer cancel()
	answer, err := h.session.Client().Txn(ctx).If(h.mutex.IsOwner()).Commit()
	return err == nil && answer.Succeeded, err
}
