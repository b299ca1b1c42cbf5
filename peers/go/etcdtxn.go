package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// etcdRetry is the time between two attempts.
const etcdRetry = 10 * time.Millisecond

// etcdTxn sends the transactions of this project's locks without a lock library: what etcd's own client can reach with them.
// All locks have one lease.
type etcdTxn struct {
	*etcdLibrary
	session *concurrency.Session
}

func newEtcdTxn(url string) (library, error) {
	connected, err := newEtcdMutex(url)
	if err != nil {
		return nil, err
	}
	mutexes, ok := connected.(*etcdLibrary)
	if !ok {
		return nil, errors.New("not a client of etcd")
	}
	session, err := concurrency.NewSession(mutexes.client, concurrency.WithTTL(etcdLease))
	return &etcdTxn{mutexes, session}, err
}

func (l *etcdTxn) describe() (module, settings string) {
	return "go.etcd.io/etcd/client/v3",
		fmt.Sprintf("a transaction that puts the key if it is absent, then one that deletes it if it has the value; one lease of %d s; "+
			"no lock library", etcdLease)
}

func (l *etcdTxn) acquire(key string, wait, lease time.Duration) (held, error) {
	if lease > 0 {
		return nil, fmt.Errorf("%w: a session always renews", errUnsupported)
	}
	ctx, cancel := within(max(wait, etcdTimeout))
	defer cancel()
	token := rand.Text()
	absent := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	put := clientv3.OpPut(key, token, clientv3.WithLease(l.session.Lease()))
	for end := time.Now().Add(wait); ; {
		answer, err := l.client.Txn(ctx).If(absent).Then(put).Else(clientv3.OpGet(key)).Commit()
		switch {
		case err != nil:
			return nil, err
		case answer.Succeeded:
			return &etcdKey{l, key, token}, nil
		case time.Until(end) < etcdRetry:
			return nil, errBusy
		}
		time.Sleep(etcdRetry)
	}
}

func (l *etcdTxn) force(key string) error {
	ctx, cancel := within(etcdTimeout)
	defer cancel()
	_, err := l.client.Delete(ctx, key)
	return err
}

func (l *etcdTxn) taken(key string) (bool, error) {
	ctx, cancel := within(etcdTimeout)
	defer cancel()
	found, err := l.client.Get(ctx, key, clientv3.WithCountOnly())
	return err == nil && found.Count > 0, err
}

type etcdKey struct {
	library    *etcdTxn
	key, token string
}

func (h *etcdKey) renew(time.Duration) error {
	return fmt.Errorf("%w: a session renews by itself alone", errUnsupported)
}

func (h *etcdKey) release() error {
	ctx, cancel := within(etcdTimeout)
	defer cancel()
	answer, err := h.library.client.Txn(ctx).If(h.isOwn()).Then(clientv3.OpDelete(h.key)).Else(clientv3.OpGet(h.key)).Commit()
	if err == nil && !answer.Succeeded {
		err = errors.New("the lock was lost")
	}
	return err
}

func (h *etcdKey) stillHeld() (bool, error) {
	ctx, cancel := within(etcdTimeout)
	defer cancel()
	answer, err := h.library.client.Txn(ctx).If(h.isOwn()).Commit()
	return err == nil && answer.Succeeded, err
}

func (h *etcdKey) isOwn() clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(h.key), "=", h.token)
}
