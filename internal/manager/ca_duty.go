package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

const (
	// caPace is the minimum time between two checks of a replacement of the CA that waits for
	// others.
	caPace = 100 * time.Millisecond
	// caPatience is how long a phase waits before an event reports it.
	caPatience = time.Minute
)

// errCAConflict is the error of a step that lost to another write. The step is computed again.
var errCAConflict = errors.New("too many writes at once")

// caDuty is the controller that advances a replacement of the CA.
type caDuty struct {
	m *Manager
	// sealed is the CA whose secret seals all keys of the store, as far as this controller has
	// checked. Later writes seal with it, too.
	sealed []byte
	// waited is the start time of the phase for which an event already reported the wait.
	waited time.Time
	wake   chan struct{} // room for one
}

func newCADuty(m *Manager) *caDuty { return &caDuty{m: m, wake: make(chan struct{}, 1)} }

// note implements subscriber.
func (d *caDuty) note(c change) {
	if c.ca || c.surroundings {
		notify.Send(d.wake)
	}
}

// run advances replacements until ctx ends.
func (d *caDuty) run(ctx context.Context) {
	d.m.view.subscribe(d)
	defer d.m.view.unsubscribe(d)
	for {
		under, err := d.round(ctx)
		if err != nil && ctx.Err() == nil && !errors.Is(err, errCAConflict) {
			d.m.o.Log.Warn("cannot take a step of the replacement of the CA", "error", err)
		}
		var again <-chan time.Time
		if under {
			again = d.m.o.Clock.After(caPace)
		}
		select {
		case <-again:
		case <-d.wake:
		case <-ctx.Done():
			return
		}
	}
}

// round takes the step that is due, and reports whether a replacement is under way.
func (d *caDuty) round(ctx context.Context) (under bool, err error) {
	c, mod := d.m.view.caState()
	if !c.underWay() {
		return false, nil
	}
	if c.Phase == plan.CAIssue {
		if err := d.seal(ctx, c); err != nil {
			return true, err
		}
	}
	facts, err := d.m.caFacts(ctx, c)
	if err != nil {
		return true, err
	}
	facts.Unsealed = !bytes.Equal(d.sealed, c.next.Raw)
	now := d.m.o.Clock.Now().Round(0).UTC()
	step, taken := c.Step(facts, now)
	if !taken {
		d.tellWaiting(c, c.Waits(facts), now)
		return true, nil
	}
	next := *c
	next.CAChange = step
	return true, d.take(ctx, c, mod, &next)
}

// take stores a step, with its revocations and its audit entry in the same transaction.
func (d *caDuty) take(ctx context.Context, c *caChange, mod int64, next *caChange) error {
	m := d.m
	t, err := m.lead(ctx)
	if err != nil {
		return err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	var ops []store.Op
	var what []string
	if next.Phase != c.Phase {
		what = append(what, fmt.Sprintf("CA: phase %s", next.Phase))
	}
	switch {
	case next.Phase == c.Phase:
	case next.Phase == plan.CAIssue:
		// Join tokens contain the CA that signs: those with the previous CA are useless from now
		// on.
		next.issued = next.Since
		ops = append(ops, store.Put(keyCA, pki.PEM(c.next)))
		ended := m.view.endTokens()
		ops, what = append(ops, ended.ops...), append(what, ended.what...)
	case next.Phase == plan.CARetire:
		ended := m.view.endAccessBefore(c.issued)
		ops, what = append(ops, ended.ops...), append(what, ended.what...)
		// Any holder of the previous CA's key could make join tokens until now.
		ended = m.view.endTokens()
		ops, what = append(ops, ended.ops...), append(what, ended.what...)
	case next.Phase == plan.CADone:
		next.sealed = nil
	}
	value, err := next.value()
	if err != nil {
		return err
	}
	txn := store.Txn{Compares: []store.Compare{{Key: keyCAChange, ModRevision: mod}}, Ops: append(ops, store.Put(keyCAChange, value))}
	var entry *apiv1.AuditEntry
	if len(what) > 0 {
		entry = m.auditEntry(ctx, what...)
		entry.Who, entry.Call = "manager "+m.o.Name, "RotateCA"
		op, err := t.auditOp(entry)
		if err != nil {
			return err
		}
		txn.Ops = append(txn.Ops, op)
	}
	res, err := t.commit(ctx, txn)
	if err != nil {
		return err
	}
	if err := t.wait(ctx, res.Revision); err != nil {
		return err
	}
	if !res.Succeeded {
		return errCAConflict
	}
	if entry != nil {
		m.auditDone(entry, res.Revision)
		d.tellStep(next)
	}
	m.o.Log.Info("the CA is replaced", "phase", next.Phase, "turn", next.Turn, "revision", res.Revision)
	if next.Phase == plan.CAIssue {
		// Finish before another write seals or signs with the previous secrets.
		return m.takeCA(m.ctx, next)
	}
	return nil
}

// tellStep emits the events of a phase that began.
func (d *caDuty) tellStep(c *caChange) {
	if c.Phase != plan.CADone {
		d.m.managerEvent(d.m.o.Name, reasonCARotating, "the CA is replaced: phase %s", c.Phase)
		return
	}
	d.m.managerEvent(d.m.o.Name, reasonCARotated, "the CA was replaced: certificates of the former one are refused")
	for _, node := range c.Without {
		d.m.tokenNeeded(node)
	}
}

// tokenNeeded emits an event for a node that has a certificate of a previous CA.
func (m *Manager) tokenNeeded(node string) {
	role, ok := m.view.roleOf(node)
	if !ok {
		return
	}
	m.objectEvent(lb.KindNode, node, reasonTokenNeeded,
		"its certificate is of the CA that was replaced: it needs a new token at its --token-file (shunt token create --node %s --role %s)", node, role)
}

// tellWaiting emits one event for a phase that has waited for caPatience.
func (d *caDuty) tellWaiting(c *caChange, waits []plan.CAWait, now time.Time) {
	if len(waits) == 0 || now.Sub(c.Since) < caPatience || d.waited.Equal(c.Since) {
		return
	}
	d.waited = c.Since
	var names []string
	for _, w := range waits {
		names = append(names, strings.TrimSpace(w.Kind+" "+w.Name)+" ("+w.Reason+")")
	}
	d.m.managerEvent(d.m.o.Name, reasonCAWaiting, "phase %s of the replacement of the CA waits for %s", c.Phase, fewNames(names))
}

// caFacts returns this leader's information about managers and nodes for a replacement of the CA.
func (m *Manager) caFacts(ctx context.Context, c *caChange) (f plan.CAFacts, err error) {
	former, next := pki.Fingerprint(c.former), pki.Fingerprint(c.next)
	names := map[string]bool{m.o.Name: true}
	if m.o.Cluster != nil {
		cluster, err := m.clusterMembers(ctx)
		if err != nil {
			return f, err
		}
		for name := range cluster {
			names[name] = true
		}
	}
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	if m.o.Cluster == nil {
		for name := range c.sealed { // also managers that are down, unless they were revoked
			names[name] = m.view.revoked[managerRevocation(name)] == nil
		}
		for name, r := range m.view.managers {
			names[name] = !m.view.revokedManagerLocked(r)
		}
		maps.DeleteFunc(names, func(_ string, counts bool) bool { return !counts })
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		r := m.view.managers[name]
		f.Managers = append(f.Managers, plan.CAParty{
			Name: name, Up: r != nil, Able: len(r.GetPublicKey()) > 0, Leads: name == m.o.Name,
			TrustsFormer: slices.Contains(r.GetTrusts(), former), TrustsNext: slices.Contains(r.GetTrusts(), next), OfNext: r.GetIssuer() == next,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(m.view.state.Nodes)) {
		if !isNodeRole(string(m.view.state.Nodes[name].Role)) {
			continue
		}
		said := m.reports.newest([]string{name})[0]
		st := said.status.GetTrust()
		f.Nodes = append(f.Nodes, plan.CAParty{
			Name: name, Up: said.status.GetConnected() && (st != nil || said.reported), Able: st != nil, Error: st.GetError(),
			TrustsFormer: slices.Contains(st.GetTrusts(), former), TrustsNext: slices.Contains(st.GetTrusts(), next), OfNext: st.GetIssuer() == next,
		})
	}
	return f, nil
}

// ended holds the operations that revoke credentials, and a line for the audit log for each.
type ended struct {
	ops  []store.Op
	what []string
}

// endTokens revokes all join tokens.
func (v *view) endTokens() (e ended) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, id := range slices.Sorted(maps.Keys(v.tokens)) {
		t := v.tokens[id]
		e.ops = append(e.ops, store.Delete(dirTokens+id))
		e.what = append(e.what, fmt.Sprintf("tokens/%s for %s %s revoked", id, t.GetRole(), t.GetNode()))
	}
	return e
}

// endAccessBefore revokes the access tokens and certificates of people and programs that were made
// before a time.
func (v *view) endAccessBefore(at time.Time) (e ended) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, id := range slices.Sorted(maps.Keys(v.accesses)) {
		if a := v.accesses[id]; a.GetCreated().AsTime().Before(at) {
			e.ops = append(e.ops, store.Delete(dirAccess+id))
			e.what = append(e.what, accessText(a)+" revoked")
		}
	}
	return e
}

// sealBatch bounds the keys that one transaction seals again.
const sealBatch = 256

// seal seals all keys of the store with the secret of the next CA, once this member has it.
func (d *caDuty) seal(ctx context.Context, c *caChange) error {
	if bytes.Equal(d.sealed, c.next.Raw) {
		return nil
	}
	m := d.m
	if !bytes.Equal(m.secrets.ca().Cert.Raw, c.next.Raw) {
		return m.takeCA(m.ctx, c)
	}
	for {
		more, err := m.sealSome(ctx)
		if err != nil {
			return err
		}
		if !more {
			d.sealed = c.next.Raw
			return nil
		}
	}
}

// sealSome seals at most sealBatch keys again that are sealed with a previous secret, and reports
// whether there were any.
func (m *Manager) sealSome(ctx context.Context) (some bool, err error) {
	t, err := m.lead(ctx)
	if err != nil {
		return false, err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	present := &secrets{generations: m.secrets.all()[:1]}
	var txn store.Txn
	for _, dir := range []string{dirRingKeys, dirCookieKeys, dirCIDKeys} {
		snap, err := m.o.Store.List(ctx, dir)
		if err != nil {
			return false, err
		}
		for _, kv := range snap.KVs {
			if len(txn.Ops) == sealBatch {
				break
			}
			value, err := m.secrets.resealed(present, kv)
			if err != nil {
				return false, err
			}
			if value != nil {
				txn.Compares = append(txn.Compares, store.Compare{Key: kv.Key, ModRevision: kv.ModRevision})
				txn.Ops = append(txn.Ops, store.Put(kv.Key, value))
			}
		}
	}
	if len(txn.Ops) == 0 {
		return false, nil
	}
	res, err := t.commit(ctx, txn)
	if err != nil {
		return false, err
	}
	if err := t.wait(ctx, res.Revision); err != nil {
		return false, err
	}
	if !res.Succeeded {
		return false, errCAConflict
	}
	m.o.Log.Info("keys are sealed with the new secret", "keys", len(txn.Ops), "revision", res.Revision)
	return true, nil
}

// resealed returns a value of the store sealed by the present generation, or nil if it already is.
func (s *secrets) resealed(present *secrets, kv store.KV) ([]byte, error) {
	if isKeySet(kv.Key) {
		if _, err := present.openKeySet(kv.Key, kv.Value); err == nil {
			return nil, nil
		}
		set, err := s.openKeySet(kv.Key, kv.Value)
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", kv.Key, err)
		}
		return present.sealKeySet(kv.Key, &set)
	}
	if _, err := present.openKey(kv.Key, kv.Value); err == nil {
		return nil, nil
	}
	k, err := s.openKey(kv.Key, kv.Value)
	if err != nil {
		return nil, err
	}
	return present.sealKey(kv.Key, k)
}

// sealedFor returns the new secrets sealed for each of the managers.
func sealedFor(managers map[string][]byte, ca *pki.CA, storeKey []byte) (map[string][]byte, error) {
	key, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	plain, err := proto.Marshal(&apiv1.StoredCASecrets{CaKey: key, StoreKey: storeKey})
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for name, public := range managers {
		if out[name], err = pki.SealFor(public, plain, ca.Cert.Raw); err != nil {
			return nil, fmt.Errorf("manager %s: %w", name, err)
		}
	}
	return out, nil
}
