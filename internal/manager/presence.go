package manager

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/store"
)

// presenceTTL is how long a member that died is still told to nodes as one to go to: a restart changes no plan.
const presenceTTL = 10 * time.Second

// appear puts this member among those that are up, on a lease of its own.
func (m *Manager) appear(ctx context.Context) (store.LeaseID, error) {
	value, err := proto.Marshal(&apiv1.StoredManager{Name: m.o.Name, Address: apiAddress(m.o), Peer: m.o.Peer, Version: m.o.Version, Schema: m.o.Schema})
	if err != nil {
		return 0, err
	}
	lease, err := m.o.Store.Grant(ctx, presenceTTL)
	if err != nil {
		return 0, fmt.Errorf("tell that this manager is up: %w", err)
	}
	_, err = m.o.Store.Txn(ctx, store.Txn{Ops: []store.Op{{Key: dirManagers + m.o.Name, Value: value, Lease: lease}}})
	if err != nil {
		return 0, fmt.Errorf("tell that this manager is up: %w", err)
	}
	return lease, nil
}

// stayPresent keeps this member among those that are up until it stops; lease is what it appeared with.
func (m *Manager) stayPresent(lease store.LeaseID) {
	for {
		err := m.o.Store.KeepAlive(m.ctx, lease)
		if m.ctx.Err() != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), revokeTimeout)
			defer cancel()
			_ = m.o.Store.Revoke(ctx, lease) // it lapses by itself
			return
		}
		for err != nil {
			m.o.Log.Warn("is not known to be up", "error", err)
			select {
			case <-m.o.Clock.After(followRetry):
			case <-m.ctx.Done():
				return
			}
			if lease, err = m.appear(m.ctx); m.ctx.Err() != nil {
				break
			}
		}
	}
}
