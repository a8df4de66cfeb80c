package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// maxAttempts is the maximum number of times that a write is computed because of conflicts. With
// one leader conflicts are rare, because only joins and tokens do not queue.
const maxAttempts = 16

// largeWrite is the number of objects from which a request is first computed without term.writing,
// so that a request that is refused, or changes nothing, does not delay other writes.
const largeWrite = 32

// invalid is the error of a request with violations.
type invalid struct{ faults []lb.Violation }

func (e invalid) Error() string {
	if len(e.faults) == 1 {
		return e.faults[0].String()
	}
	return fmt.Sprintf("%s (and %d more)", e.faults[0], len(e.faults)-1)
}

// notFound is the error of a request for an object that does not exist.
type notFound struct{ r ref }

func (e notFound) Error() string { return fmt.Sprintf("%s: not found", lb.Ref(e.r.kind, e.r.name)) }

// stale is the error of a change of an object that was changed since the caller read it.
type stale struct {
	r             ref
	read, present int64
}

func (e stale) Error() string {
	return fmt.Sprintf("%s: revision: %d: must be %d, the present one: it was changed since it was read", lb.Ref(e.r.kind, e.r.name), e.read, e.present)
}

// write is one attempt at a write: its input and its effects.
type write struct {
	base *snapshot
	// edited holds the objects that differ from the base; nil for deleted ones.
	edited map[ref]lb.Object
	// merged holds the objects that have fields of other sources, by lb.Ref.
	merged map[string]merged
	// held is the change of each tenant's resource usage.
	held    map[string]holding
	changes []*apiv1.Change
	txn     store.Txn
	keys    map[lb.EndpointKey]bool // endpoints whose owner or members may change
	// ended holds the access tokens that are deleted with their tenant, as text for the audit log.
	ended []string
	// steps holds the changes of endpoints that are kept.
	steps []step
	// by is the caller of the write, zero for the manager itself.
	by identity
	// ringKey, if not 0, is the ring key to which all endpoints of the write move.
	ringKey uint32
}

// snapshot is the input of a write: the view, read piece by piece, so that the cost of a write
// depends on the size of its change. A write that is stored in between changes the serial key, so a
// result computed from a mix is not committed.
type snapshot struct {
	v                       *view
	rev, planRev, serialMod int64
	keyID                   uint32
}

func (v *view) snapshot() *snapshot {
	v.mu.RLock()
	defer v.mu.RUnlock()
	s := &snapshot{v: v, rev: v.rev, planRev: v.planRev, serialMod: v.serialMod}
	if n := len(v.state.RingKeys); n > 0 {
		s.keyID = v.state.RingKeys[n-1].ID
	}
	return s
}

// record returns the record of an object, or nil if there is none.
func (s *snapshot) record(r ref) *record {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return s.v.records[r]
}

// endpoint returns the stored state of an endpoint and the revision of its key. known is false if
// there is none.
func (s *snapshot) endpoint(key lb.EndpointKey) (st plan.EndpointState, mod int64, known bool) {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	st, known = s.v.state.Endpoints[key]
	return st, s.v.stateMod[key], known
}

// owner returns the owner of an endpoint, or zero if it has none.
func (s *snapshot) owner(key lb.EndpointKey) owner {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return s.v.owners[key]
}

// tokensOf returns the ids of a node's join tokens, sorted.
func (s *snapshot) tokensOf(node string) []string {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	var out []string
	for id, t := range s.v.tokens {
		if t.GetNode() == node {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// faults returns the violations of the state with the edits applied.
func (s *snapshot) faults(edited map[ref]lb.Object) []lb.Violation {
	list := edits(edited)
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	if missed := s.v.wanted.Missed(list...); len(missed) > 0 {
		return missed
	}
	return s.v.wanted.Check(list...)
}

// apply sets the objects of the request to the values from its source, all of them or none.
func (m *Manager) apply(ctx context.Context, req *apiv1.ApplyRequest) (int64, []*apiv1.Change, error) {
	res, err := m.applyAll(ctx, req)
	return res.GetRevision(), res.GetChanges(), err
}

// applyAll is apply with its warnings.
func (m *Manager) applyAll(ctx context.Context, req *apiv1.ApplyRequest) (*apiv1.ApplyResponse, error) {
	opinions, faults := parseOpinions(req)
	if len(faults) > 0 {
		return nil, invalid{faults}
	}
	var warnings []string // of the last attempt
	size := len(req.GetObjects())
	if req.GetPrune() {
		size = max(size, largeWrite) // prune goes through all objects of the source
	}
	rev, changes, err := m.write(ctx, req.GetDryRun(), size, func(t *term, w *write) error {
		if err := w.apply(opinions); err != nil {
			return err
		}
		if req.GetPrune() {
			if err := w.prune(t, cmp.Or(req.GetSource(), defaultSource), opinions); err != nil {
				return err
			}
		}
		warnings = append(m.olderCopy(), w.warnings(opinions, m.reports.seen)...)
		if req.GetForce() {
			return nil
		}
		return w.keepsHosts()
	})
	if err != nil {
		return nil, err
	}
	return &apiv1.ApplyResponse{Revision: rev, Changes: changes, Warnings: warnings}, nil
}

// remove deletes the objects. Without force it returns an error for Nodes of role host with
// backends that are not drained.
func (m *Manager) remove(ctx context.Context, refs []ref, dryRun, force bool) (int64, []*apiv1.Change, error) {
	return m.write(ctx, dryRun, len(refs), func(t *term, w *write) error {
		for _, r := range refs {
			if err := w.delete(r, t.revocation(r.name)); err != nil {
				return err
			}
		}
		if force {
			return nil
		}
		return w.keepsHosts()
	})
}

// write computes and commits a change. The view has the result when write returns. A result without
// a commit, including an error, is valid for a time at which this member led, because it may have
// been suspended since the request. size is the number of objects in the request.
func (m *Manager) write(ctx context.Context, dryRun bool, size int, edit func(*term, *write) error) (int64, []*apiv1.Change, error) {
	t, err := m.lead(ctx)
	if err != nil {
		return 0, nil, err
	}
	r := &request{ctx: ctx, edit: edit, by: identityOf(ctx), dry: dryRun}
	if dryRun {
		return t.unstored(t.try(r))
	}
	if size >= largeWrite {
		// Only once, because serve computes it again. A request that is refused or changes nothing
		// does not wait for its turn.
		if w, whole, err := t.tryOnce(r); whole && (err != nil || len(w.txn.Ops) == 0) {
			return t.unstored(r, w, err)
		}
	}
	t.requests.add(r)
	t.writing.Lock()
	defer t.writing.Unlock()
	if !r.done {
		t.serve(t.requests.take())
	}
	return r.revision, r.changes, r.err
}

func newWrite(base *snapshot) *write {
	return &write{base: base, edited: map[ref]lb.Object{}, merged: map[string]merged{}, held: map[string]holding{}, keys: map[lb.EndpointKey]bool{}}
}

// delete deletes an object. With a node its certificates are revoked and its tokens deleted, with a
// tenant its access tokens.
func (w *write) delete(r ref, revoked time.Time) error {
	old := w.base.record(r)
	if err := w.by.mayDelete(old, r); err != nil {
		return err
	}
	if o, edited := w.edited[r]; old == nil || edited && o == nil {
		return notFound{r}
	}
	w.changes = append(w.changes, &apiv1.Change{Kind: string(r.kind), Name: r.name, Action: apiv1.Change_ACTION_DELETED, Before: old.shown()})
	w.edited[r] = nil
	w.hold(old, nil, 0)
	w.touch(old.obj)
	w.expect(r.key(), old)
	w.txn.Ops = append(w.txn.Ops, store.Delete(r.key()))
	switch r.kind {
	case lb.KindNode:
		return w.revoke(r.name, revoked)
	case lb.KindTenant:
		w.endAccess(r.name)
	}
	return nil
}

func (w *write) expect(key string, old *record) {
	c := store.Compare{Key: key}
	if old != nil {
		c.ModRevision = old.mod
	}
	w.txn.Compares = append(w.txn.Compares, c)
}

func (w *write) touch(o lb.Object) {
	if svc, ok := o.(*lb.Service); ok {
		plan.EachEndpoint(svc, func(key lb.EndpointKey, _ *lb.Endpoint) { w.keys[key] = true })
	}
}

// finish validates the resulting state and computes the next states of its endpoints.
func (w *write) finish(c conditions) error {
	if len(w.txn.Ops) == 0 {
		return nil
	}
	if faults := w.base.faults(w.edited); len(faults) > 0 {
		return invalid{w.asSaid(faults)}
	}
	// A group contains writes of several callers. The references of each were checked when it was
	// computed.
	var managers map[netip.Addr]string
	if c.managers != nil {
		managers = c.managers()
	}
	if faults := w.base.foreign(identity{}, managers, w.edited); len(faults) > 0 {
		return invalid{w.asSaid(faults)}
	}
	if faults := w.unable(c); len(faults) > 0 {
		return invalid{w.asSaid(faults)}
	}
	if faults := w.crowded(c); len(faults) > 0 {
		return invalid{faults}
	}
	if faults := append(w.crowdedTables(c), w.crowdedHosts(c)...); len(faults) > 0 {
		return invalid{faults}
	}
	if faults := w.crowdedSNAT(c); len(faults) > 0 {
		return invalid{w.asSaid(faults)}
	}
	if err := w.place(); err != nil {
		return err
	}
	if err := w.rekey(c.now); err != nil {
		return err
	}
	if err := w.retunnel(c.now); err != nil {
		return err
	}
	owners := w.owners()
	for _, key := range slices.SortedFunc(maps.Keys(w.keys), plan.CompareKeys) {
		if err := w.advance(key, owners[key], c); err != nil {
			return err
		}
	}
	return nil
}

// owners returns the owners of the touched endpoints in the resulting state.
func (w *write) owners() map[lb.EndpointKey]owner {
	out := make(map[lb.EndpointKey]owner, len(w.keys))
	for key := range w.keys {
		own := w.base.owner(key)
		if own.svc == nil {
			continue
		}
		if _, edited := w.edited[refOf(own.svc)]; !edited {
			out[key] = own
		}
	}
	for _, o := range w.edited {
		if svc, ok := o.(*lb.Service); ok {
			plan.EachEndpoint(svc, func(key lb.EndpointKey, ep *lb.Endpoint) { out[key] = owner{svc, ep} })
		}
	}
	return out
}

// advance adds the endpoint's next state to the transaction.
func (w *write) advance(key lb.EndpointKey, own owner, c conditions) error {
	prev, mod, known := w.base.endpoint(key)
	prev.Key = key
	if !known && own.ep != nil {
		w.asSiblings(&prev, own)
	}
	next, err := plan.Advance(prev, c.input(key, own.ep, w.ringKeyOf(key, &prev, known)))
	if errors.Is(err, plan.ErrMemberIDs) {
		return invalid{[]lb.Violation{{Field: lb.Ref(lb.KindService, own.svc.Name) + ": endpoints", Value: plan.FormatKey(key), Allowed: err.Error()}}}
	}
	if err != nil {
		return err
	}
	forget := own.ep == nil && next.Idle(c.now)
	if forget && !known || !forget && known && next.Equal(&prev) {
		return nil
	}
	w.txn.Compares = append(w.txn.Compares, store.Compare{Key: stateKey(key), ModRevision: mod})
	if forget {
		w.txn.Ops = append(w.txn.Ops, store.Delete(stateKey(key)))
		return nil
	}
	value, err := proto.Marshal(convert.ToStoredEndpoint(&next))
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", plan.FormatKey(key), err)
	}
	w.txn.Ops = append(w.txn.Ops, store.Put(stateKey(key), value))
	if known && own.ep != nil {
		w.steps = append(w.steps, step{own.svc, key, prev.Members, next.Members})
	}
	return nil
}

// asSiblings gives a new quic endpoint the member ids that it has under another VIP of the family,
// because a server that creates connection ids cannot determine the VIP of a connection. From then
// on both change alike.
func (w *write) asSiblings(st *plan.EndpointState, own owner) {
	if own.ep.QUIC == nil || !own.ep.Cookies() {
		return
	}
	for _, vip := range own.svc.VIPs {
		key := st.Key
		if key.VIP = vip; vip == st.Key.VIP || vip.Is4() != st.Key.VIP.Is4() {
			continue
		}
		if sibling, _, known := w.base.endpoint(key); known && w.base.owner(key).svc != nil && w.base.owner(key).svc.Name == own.svc.Name {
			st.Members, st.Quarantine = sibling.Members, sibling.Quarantine
			return
		}
	}
}

// fenced returns the transaction with the serial key, which makes any two writes conflict.
func (w *write) fenced() store.Txn {
	t := w.txn
	t.Compares = append(t.Compares, store.Compare{Key: keySerial, ModRevision: w.base.serialMod})
	t.Ops = append(t.Ops, store.Put(keySerial, []byte(strconv.FormatInt(w.base.rev, 10))))
	return t
}

// stamp sets the revision in the returned changes.
func (w *write) stamp(revision int64) {
	for _, ch := range w.changes {
		if ch.Action == apiv1.Change_ACTION_CREATED || ch.Action == apiv1.Change_ACTION_UPDATED {
			ch.After.Revision = revision
		}
	}
}
