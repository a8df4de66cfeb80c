package manager

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// ErrStartAnew is the cause of a member's end when the member must start again, in the same
// process, on the same data directory, because it has to accept certificates of other CAs and the
// store's member reads these only when it starts.
var ErrStartAnew = errors.New("the manager starts anew with other CAs")

// followCA applies replacements of the CA to this member until it stops.
func (m *Manager) followCA() {
	done := int64(-1)
	for {
		var c *caChange
		var mod int64
		if m.view.until(m.ctx, func() bool {
			c, mod = m.view.caChange, m.view.caMod
			return mod != done || c.underWay() && m.misregisteredLocked()
		}) != nil {
			return
		}
		err := m.takeCA(m.ctx, c)
		if err == nil {
			done = mod
			continue
		}
		if m.ctx.Err() != nil {
			return
		}
		m.o.Log.Error("cannot follow the replacement of the CA", "phase", c.Phase, "error", err)
		select {
		case <-m.o.Clock.After(followRetry):
		case <-m.ctx.Done():
			return
		}
	}
}

// takeCA applies a step of a replacement of the CA to this member. It may be repeated.
func (m *Manager) takeCA(ctx context.Context, c *caChange) error {
	if c == nil {
		return nil
	}
	m.caMu.Lock()
	defer m.caMu.Unlock()
	if err := m.adoptCA(c); err != nil {
		return err
	}
	if c.Phase != plan.CATrust {
		if err := m.issueByNextCA(c); err != nil {
			return err
		}
	}
	if err := m.register(ctx); err != nil {
		return err
	}
	// A member that was down when the replacement ended still has the previous secrets.
	late := c.Phase == plan.CADone && pki.Holds(m.cert.trusts, c.former)
	if c.Turn != m.o.Name && !late {
		return nil
	}
	switch {
	case c.Phase == plan.CATrust && !pki.Holds(m.cert.trusts, c.next):
	case late, c.Phase == plan.CARetire && pki.Holds(m.cert.trusts, c.former):
		if err := m.secrets.settle(m.o.Dir); err != nil {
			return err
		}
	default:
		return nil
	}
	m.o.Log.Info("manager starts anew with other CAs", "phase", c.Phase)
	m.stop(ErrStartAnew)
	return nil
}

// adoptCA decrypts and stores the next secrets from the change, unless this member has them.
func (m *Manager) adoptCA(c *caChange) error {
	if !c.underWay() || m.secrets.generationOf(c.next.Raw) != nil {
		return nil
	}
	sealed, ok := c.sealed[m.o.Name]
	if !ok {
		return errors.New("the new secrets are not sealed for this manager: it joined after the replacement began")
	}
	plain, err := pki.Open(m.cert.key, sealed, c.next.Raw)
	if err != nil {
		return err
	}
	var s apiv1.StoredCASecrets
	if err := proto.Unmarshal(plain, &s); err != nil {
		return err
	}
	ca, err := pki.ParseCA(pki.PEM(c.next), s.GetCaKey())
	if err != nil {
		return fmt.Errorf("new CA: %w", err)
	}
	next, err := newGeneration(ca, s.GetStoreKey())
	if err != nil {
		return fmt.Errorf("new store key: %w", err)
	}
	return m.secrets.keep(m.o.Dir, m.secrets.present(), next)
}

// issueByNextCA makes the next generation of secrets the one that signs and seals, and replaces
// this member's certificate and the administrator's.
func (m *Manager) issueByNextCA(c *caChange) error {
	next := m.secrets.generationOf(c.next.Raw)
	if next == nil {
		return errors.New("this manager does not have the new CA")
	}
	if m.secrets.present() != next {
		if err := m.secrets.keep(m.o.Dir, next, m.secrets.present()); err != nil {
			return err
		}
	}
	issuer, err := m.cert.issuer()
	if err != nil {
		return err
	}
	if pki.Fingerprint(issuer) != pki.Fingerprint(c.next) {
		if err := m.cert.remake(); err != nil {
			return err
		}
		// Idle connections use the previous certificate, which others may refuse before this member
		// starts again.
		m.transport.CloseIdleConnections()
	}
	_, err = m.writeAdminConfig(m.o.Clock.Now())
	return err
}

// misregisteredLocked reports whether this member registered with another certificate than its
// current one, because both may change at the same moment.
func (m *Manager) misregisteredLocked() bool {
	registered := m.view.managers[m.o.Name]
	issuer, err := m.cert.issuer()
	return err == nil && registered != nil && registered.GetIssuer() != pki.Fingerprint(issuer)
}

// register renews this member's registration, unless it is up to date.
func (m *Manager) register(ctx context.Context) error {
	m.view.mu.RLock()
	present := m.view.managers[m.o.Name]
	m.view.mu.RUnlock()
	value, err := m.registered()
	if err != nil {
		return err
	}
	want := &apiv1.StoredManager{}
	if err := proto.Unmarshal(value, want); err != nil || proto.Equal(present, want) {
		return err
	}
	lease := store.LeaseID(m.lease.Load())
	if lease == 0 {
		return nil // appear registers it
	}
	_, err = m.o.Store.Txn(ctx, store.Txn{Ops: []store.Op{{Key: dirManagers + m.o.Name, Value: value, Lease: lease}}})
	return err
}
