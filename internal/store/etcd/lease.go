package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/shuntlb/shunt/internal/store"
)

// Barrier implements store.Store, by a linearizable read of a key that need not exist.
func (s *Store) Barrier(ctx context.Context) (int64, error) {
	res, err := s.client.Get(ctx, "/", clientv3.WithCountOnly())
	if err != nil {
		return 0, s.fault("barrier", err)
	}
	return res.Header.Revision, nil
}

// Grant implements store.Store. etcd counts leases in whole seconds.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, error) {
	res, err := s.client.Grant(ctx, max(1, int64((ttl+time.Second-1)/time.Second)))
	if err != nil {
		return 0, s.fault("grant lease", err)
	}
	return store.LeaseID(res.ID), nil
}

// KeepAlive implements store.Store.
func (s *Store) KeepAlive(ctx context.Context, id store.LeaseID) error {
	renewed := time.Now()
	for {
		ttl, err := s.renew(ctx, id)
		now := time.Now()
		switch {
		case err == nil:
			renewed = now
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, store.ErrLeaseLost), errors.Is(err, store.ErrClosed):
			return err
		}
		if err != nil && now.Sub(renewed) > ttl {
			return fmt.Errorf("lease was not renewed for %v: %w", now.Sub(renewed).Round(time.Millisecond), err)
		}
		select {
		case <-time.After(ttl / 4):
		case <-s.closed:
			return store.ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// renewTimeout bounds one renewal; it is also taken for a lease's time as long as etcd did not tell it.
const renewTimeout = time.Second

// renew renews once and returns how long the lease lasts from now.
func (s *Store) renew(ctx context.Context, id store.LeaseID) (time.Duration, error) {
	rctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	res, err := s.client.KeepAliveOnce(rctx, clientv3.LeaseID(id))
	if err != nil {
		return renewTimeout, s.fault("renew lease", err)
	}
	return time.Duration(res.TTL) * time.Second, nil
}

// Revoke implements store.Store.
func (s *Store) Revoke(ctx context.Context, id store.LeaseID) error {
	_, err := s.client.Revoke(ctx, clientv3.LeaseID(id))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return s.fault("revoke lease", err)
}
