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

// Grant implements store.Store. etcd counts leases in whole seconds, and grants none that is
// shorter than one and a half of its election timeouts.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, error) {
	ctx, done, err := s.bound(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	asked := max(1, int64((ttl+time.Second-1)/time.Second))
	res, err := s.client.Grant(ctx, asked)
	if err != nil {
		return 0, s.fault("grant lease", err)
	}
	if res.TTL > asked {
		s.log.Warn("leases last longer than they should: the election timeout of etcd is too long", "asked", seconds(asked), "granted", seconds(res.TTL))
	}
	id := store.LeaseID(res.ID)
	s.leases.Store(id, seconds(res.TTL))
	return id, nil
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// Renew implements store.Store.
func (s *Store) Renew(ctx context.Context, id store.LeaseID) error {
	_, err := s.renew(ctx, id, renewTimeout)
	return err
}

// Timing of renewals.
const (
	// firstTTL is the assumed duration of a lease that was granted elsewhere, until etcd reports
	// it: no lease is shorter.
	firstTTL = time.Second
	// retryAfter is the pause after a failed renewal.
	retryAfter = 50 * time.Millisecond
	// renewTimeout bounds a single renewal by Renew, because a lease requested longer ago may be
	// over.
	renewTimeout = 2 * time.Second
)

// KeepAlive implements store.Store. It uses the monotonic clock, which continues while the process
// is stopped and does not jump.
func (s *Store) KeepAlive(ctx context.Context, id store.LeaseID) error {
	ttl, renewed := firstTTL, s.now()
	if granted, ok := s.leases.Load(id); ok {
		ttl = granted.(time.Duration)
	}
	var failed error       // of the last renewal
	var failedBy time.Time // the latest time of its failure, if the process did not stand still
	for {
		// The lease lasts from the sending of a renewal, not from its answer.
		sent := s.now()
		left := ttl - sent.Sub(renewed)
		if left <= 0 && failed != nil && sent.Sub(failedBy) < ttl/2 {
			return fmt.Errorf("lease was not renewed for %v and lasts %v: %w", sent.Sub(renewed).Round(time.Millisecond), ttl, failed)
		}
		if left <= 0 {
			return fmt.Errorf("%w: it was not renewed for %v and lasts %v: the process stood still", store.ErrLeaseLost, sent.Sub(renewed).Round(time.Millisecond), ttl)
		}
		timeout := max(left/2, retryAfter)
		got, err := s.renew(ctx, id, timeout)
		wait := retryAfter
		switch {
		case err == nil:
			ttl, renewed, failed = got, sent, nil
			wait = ttl / 4
		case errors.Is(err, store.ErrLeaseLost):
			return err
		case s.ended() != nil:
			return s.ended()
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			failed, failedBy = err, sent.Add(timeout)
			if now := s.now(); now.Before(failedBy) {
				failedBy = now
			}
		}
		select {
		case <-time.After(wait):
		case <-s.life.Done():
			return s.ended()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// renew renews once and returns the duration of the lease.
func (s *Store) renew(ctx context.Context, id store.LeaseID, timeout time.Duration) (time.Duration, error) {
	ctx, done, err := s.bound(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, err := s.client.KeepAliveOnce(ctx, clientv3.LeaseID(id))
	if err != nil {
		return 0, s.fault("renew lease", err)
	}
	return seconds(res.TTL), nil
}

// Revoke implements store.Store.
func (s *Store) Revoke(ctx context.Context, id store.LeaseID) error {
	ctx, done, err := s.bound(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.leases.Delete(id)
	_, err = s.client.Revoke(ctx, clientv3.LeaseID(id))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return s.fault("revoke lease", err)
}
