package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

const (
	// presenceTTL is how long nodes keep a failed member in their plans. A restart changes no plan.
	presenceTTL = 10 * time.Second
	// presenceProof is the age after which a registration that still exists must have been renewed:
	// a lease without renewals lasts presenceTTL, and restarts once when the store changes its own
	// leader.
	presenceProof = 2*presenceTTL + time.Second
)

// taken reports that another manager that is up has the name.
type taken struct{ name, address string }

func (e taken) Error() string {
	return fmt.Sprintf("name: %q: must be of one manager alone: another one of this name is up at %s: stop that one, or give this one another name", e.name, e.address)
}

// appear registers this member as up, on a lease of its own. No other manager may have the name;
// see rival.
func (m *Manager) appear(ctx context.Context) (store.LeaseID, error) {
	lease, err := m.tryAppear(ctx)
	if err != nil {
		return 0, fmt.Errorf("tell that this manager is up: %w", err)
	}
	return lease, nil
}

func (m *Manager) tryAppear(ctx context.Context) (store.LeaseID, error) {
	for {
		value, err := m.registered()
		if err != nil {
			return 0, err
		}
		former, err := m.registration(ctx)
		if err != nil {
			return 0, err
		}
		lease, err := m.o.Store.Grant(ctx, presenceTTL)
		if err != nil {
			return 0, err
		}
		res, err := m.o.Store.Txn(ctx, store.Txn{
			Compares: []store.Compare{{Key: dirManagers + m.o.Name, ModRevision: former}}, Ops: []store.Op{{Key: dirManagers + m.o.Name, Value: value, Lease: lease}},
		})
		if err != nil || res.Succeeded {
			m.lease.Store(int64(lease))
			return lease, err
		}
		_ = m.o.Store.Revoke(ctx, lease) // otherwise it expires by itself
	}
}

// registered returns the registration of this member.
func (m *Manager) registered() ([]byte, error) {
	public, err := pki.PublicKey(m.cert.key)
	if err != nil {
		return nil, err
	}
	issuer, err := m.cert.issuer()
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&apiv1.StoredManager{
		Name: m.o.Name, Address: apiAddress(m.o), Peer: m.o.Peer, Version: m.o.Version, Commit: m.o.Commit, Schema: m.o.Schema,
		PublicKey: public, Trusts: pki.Fingerprints(m.cert.trusts), Issuer: pki.Fingerprint(issuer),
	})
}

// alone returns when no other manager of this member's name is up.
func (m *Manager) alone(ctx context.Context) error {
	_, err := m.registration(ctx)
	return err
}

// registration returns the revision of the registration with this member's name once it is not a
// rival's; 0 if there is none.
func (m *Manager) registration(ctx context.Context) (mod int64, err error) {
	for {
		kv, ok, _, err := m.o.Store.Get(ctx, dirManagers+m.o.Name)
		if err != nil || !ok {
			return 0, err
		}
		if gone, err := m.rival(ctx, kv); err != nil || !gone {
			return kv.ModRevision, err
		}
	}
}

// rival checks a registration with this member's name, and returns taken if it belongs to another
// manager that is up. That must be certain, because a replaced machine returns with its name and a
// new address: either a manager of this name answers there, or the registration, which is on a
// lease, outlives every lease without renewals. A registration with this member's own address is
// from an earlier process. So is any other one while managers are members of the store, because the
// store accepts no two members of one name. gone reports that the registration was removed.
func (m *Manager) rival(ctx context.Context, kv store.KV) (gone bool, err error) {
	var r apiv1.StoredManager
	if err := proto.Unmarshal(kv.Value, &r); err != nil {
		return false, err
	}
	if m.o.Cluster != nil || r.GetAddress() == apiAddress(m.o) {
		return false, nil
	}
	is := taken{m.o.Name, r.GetAddress()}
	if m.answers(ctx, is.address) {
		return false, is
	}
	m.o.Log.Info("another manager has this name: waits until it is certain that it is gone", "address", is.address, "at_most", presenceProof)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := m.o.Clock.After(presenceProof)
	go func() {
		select {
		case <-late:
			cancel(is)
		case <-ctx.Done():
		}
	}()
	if err := m.view.until(ctx, func() bool { return m.view.managers[m.o.Name].GetAddress() != is.address }); err != nil {
		return false, err
	}
	return true, nil
}

// answers reports whether a manager with this member's name and of its CA serves at the address.
func (m *Manager) answers(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: m.cert.client()}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer conn.Close()
	name, role := pki.Identity(conn.(*tls.Conn).ConnectionState().PeerCertificates[0])
	return name == m.o.Name && role == pki.RoleManager
}

// stayPresent renews this member's registration until the member stops. lease is the one from
// appear. A member whose name another one has taken meanwhile stops.
func (m *Manager) stayPresent(lease store.LeaseID) {
	for {
		err := m.o.Store.KeepAlive(m.ctx, lease)
		if m.ctx.Err() != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), revokeTimeout)
			defer cancel()
			_ = m.o.Store.Revoke(ctx, lease) // otherwise it expires by itself
			return
		}
		for err != nil {
			m.o.Log.Warn("is not known to be up", "error", err)
			select {
			case <-m.o.Clock.After(followRetry):
			case <-m.ctx.Done():
				return
			}
			lease, err = m.appear(m.ctx)
			if errors.As(err, new(taken)) {
				m.stop(err)
			}
			if m.ctx.Err() != nil {
				break
			}
		}
	}
}
