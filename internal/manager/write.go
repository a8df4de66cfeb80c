package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// maxAttempts bounds how often a write is computed again after a conflict. With one leader conflicts are rare: only
// joins and tokens do not queue.
const maxAttempts = 16

// invalid is a request with faults.
type invalid struct{ faults []lb.Violation }

func (e invalid) Error() string {
	if len(e.faults) == 1 {
		return e.faults[0].String()
	}
	return fmt.Sprintf("%s (and %d more)", e.faults[0], len(e.faults)-1)
}

// notFound is a delete of what is not there.
type notFound struct{ r ref }

func (e notFound) Error() string { return fmt.Sprintf("%s: not found", lb.Ref(e.r.kind, e.r.name)) }

// stale is a change of an object that somebody else changed since it was read.
type stale struct {
	r             ref
	read, present int64
}

func (e stale) Error() string {
	return fmt.Sprintf("%s: revision: %d: must be %d, the present one: it was changed since it was read", lb.Ref(e.r.kind, e.r.name), e.read, e.present)
}

// write is one attempt at a write: what it is computed from and what it would do.
type write struct {
	base    *snapshot
	after   map[ref]lb.Object
	changes []*apiv1.Change
	txn     store.Txn
	keys    map[lb.EndpointKey]bool // endpoints whose owner or members may change
}

// snapshot is the view at one revision, safe to read without a lock.
type snapshot struct {
	rev, planRev, serialMod int64
	records                 map[ref]*record
	states                  map[lb.EndpointKey]plan.EndpointState
	stateMod                map[lb.EndpointKey]int64
	owners                  map[lb.EndpointKey]owner
	tokens                  map[string]*apiv1.StoredToken
	keyID                   uint32
}

// snapshot copies what a write needs; keys are the endpoints it may touch besides those of the refs' present objects.
func (v *view) snapshot() *snapshot {
	v.mu.RLock()
	defer v.mu.RUnlock()
	s := &snapshot{
		rev: v.rev, planRev: v.planRev, serialMod: v.serialMod, records: maps.Clone(v.records),
		states: maps.Clone(v.state.Endpoints), stateMod: maps.Clone(v.stateMod), owners: maps.Clone(v.owners),
		tokens: maps.Clone(v.tokens),
	}
	if n := len(v.state.RingKeys); n > 0 {
		s.keyID = v.state.RingKeys[n-1].ID
	}
	return s
}

// apply stores the objects.
func (m *Manager) apply(ctx context.Context, in []*apiv1.Object, dryRun bool) (int64, []*apiv1.Change, error) {
	objs, faults := parseObjects(in)
	if len(faults) > 0 {
		return 0, nil, invalid{faults}
	}
	return m.write(ctx, dryRun, func(w *write) error {
		for i, o := range objs {
			if err := w.put(o, in[i].GetRevision()); err != nil {
				return err
			}
		}
		return nil
	})
}

// parseObjects reads and validates each object by itself.
func parseObjects(in []*apiv1.Object) ([]lb.Object, []lb.Violation) {
	var faults []lb.Violation
	objs := make([]lb.Object, 0, len(in))
	for i, o := range in {
		obj, f := convert.FromObject(o, i)
		faults = append(append(faults, f...), unknownFields(fmt.Sprintf("objects[%d]: ", i), o.ProtoReflect())...)
		if obj != nil {
			objs = append(objs, obj)
		}
	}
	return objs, append(faults, lb.Validate(objs...)...)
}

// remove deletes the objects.
func (m *Manager) remove(ctx context.Context, refs []ref, dryRun bool) (int64, []*apiv1.Change, error) {
	return m.write(ctx, dryRun, func(w *write) error {
		for _, r := range refs {
			// The clock may have been put back since a certificate was issued.
			if err := w.delete(r, later(m.o.Clock.Now(), m.issued)); err != nil {
				return err
			}
		}
		return nil
	})
}

// write computes and commits until there is no conflict. What it returns is in the view already.
func (m *Manager) write(ctx context.Context, dryRun bool, edit func(*write) error) (int64, []*apiv1.Change, error) {
	m.writing.Lock()
	defer m.writing.Unlock()
	for range maxAttempts {
		w := newWrite(m.view.snapshot())
		if err := edit(w); err != nil {
			return 0, nil, err
		}
		if err := w.finish(m.conditions()); err != nil {
			return 0, nil, err
		}
		if dryRun || len(w.txn.Ops) == 0 {
			return w.base.planRev, w.changes, nil
		}
		res, err := m.commit(ctx, w.fenced())
		if err != nil {
			return 0, nil, err
		}
		if err := m.view.wait(ctx, res.Revision); err != nil {
			return 0, nil, fmt.Errorf("stored at revision %d, but not yet published: %w", res.Revision, err)
		}
		if res.Succeeded {
			w.stamp(res.Revision)
			return res.Revision, w.changes, nil
		}
	}
	return 0, nil, errors.New("too many writes at once, try again")
}

func newWrite(base *snapshot) *write {
	w := &write{base: base, after: make(map[ref]lb.Object, len(base.records)), keys: map[lb.EndpointKey]bool{}}
	for r, rec := range base.records {
		w.after[r] = rec.obj
	}
	return w
}

// put adds or changes an object. A revision other than 0 is the one it was read at, which must still be its present.
func (w *write) put(o lb.Object, read int64) error {
	r := refOf(o)
	if present := w.base.records[r].revision(); read != 0 && read != present {
		return stale{r, read, present}
	}
	ch := &apiv1.Change{Kind: string(r.kind), Name: r.name, Action: apiv1.Change_ACTION_CREATED}
	w.changes = append(w.changes, ch)
	next := convert.ToObject(o)
	next.Generation = 1
	old := w.base.records[r]
	if old != nil {
		ch.Before = old.api
		if lb.Equal(old.obj, o) {
			ch.Action, ch.After = apiv1.Change_ACTION_UNCHANGED, old.api
			return nil
		}
		ch.Action, next.Generation = apiv1.Change_ACTION_UPDATED, old.api.Generation+1
		w.touch(old.obj)
	}
	ch.After = next
	w.after[r] = o
	w.touch(o)
	value, err := proto.Marshal(next)
	if err != nil {
		return fmt.Errorf("%s: %w", lb.Ref(r.kind, r.name), err)
	}
	w.expect(r.key(), old)
	w.txn.Ops = append(w.txn.Ops, store.Put(r.key(), value))
	return nil
}

// delete takes an object out. A node also loses its certificates and its tokens.
func (w *write) delete(r ref, revoked time.Time) error {
	old := w.base.records[r]
	if _, present := w.after[r]; !present || old == nil {
		return notFound{r}
	}
	w.changes = append(w.changes, &apiv1.Change{Kind: string(r.kind), Name: r.name, Action: apiv1.Change_ACTION_DELETED, Before: old.api})
	delete(w.after, r)
	w.touch(old.obj)
	w.expect(r.key(), old)
	w.txn.Ops = append(w.txn.Ops, store.Delete(r.key()))
	if r.kind == lb.KindNode {
		return w.revoke(r.name, revoked)
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

// finish validates the resulting state and computes what its endpoints must remember.
func (w *write) finish(c conditions) error {
	if len(w.txn.Ops) == 0 {
		return nil
	}
	all := make([]lb.Object, 0, len(w.after))
	for _, r := range slices.SortedFunc(maps.Keys(w.after), compareRefs) {
		all = append(all, w.after[r])
	}
	if faults := lb.ValidateState(all); len(faults) > 0 {
		return invalid{faults}
	}
	owners := w.owners()
	for _, key := range slices.SortedFunc(maps.Keys(w.keys), plan.CompareKeys) {
		if err := w.advance(key, owners[key], c); err != nil {
			return err
		}
	}
	return nil
}

// owners finds who owns the touched endpoints in the resulting state.
func (w *write) owners() map[lb.EndpointKey]owner {
	out := make(map[lb.EndpointKey]owner, len(w.keys))
	for _, o := range w.after {
		svc, ok := o.(*lb.Service)
		if !ok {
			continue
		}
		plan.EachEndpoint(svc, func(key lb.EndpointKey, ep *lb.Endpoint) {
			if w.keys[key] {
				out[key] = owner{svc, ep}
			}
		})
	}
	return out
}

// advance adds the endpoint's next state to the transaction.
func (w *write) advance(key lb.EndpointKey, own owner, c conditions) error {
	prev, known := w.base.states[key]
	prev.Key = key
	next, err := plan.Advance(prev, c.input(key, own.ep, w.base.keyID))
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
	w.txn.Compares = append(w.txn.Compares, store.Compare{Key: stateKey(key), ModRevision: w.base.stateMod[key]})
	if forget {
		w.txn.Ops = append(w.txn.Ops, store.Delete(stateKey(key)))
		return nil
	}
	value, err := proto.Marshal(convert.ToStoredEndpoint(&next))
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", plan.FormatKey(key), err)
	}
	w.txn.Ops = append(w.txn.Ops, store.Put(stateKey(key), value))
	return nil
}

// fenced is the transaction with the serial key, which makes any two writes conflict.
func (w *write) fenced() store.Txn {
	t := w.txn
	t.Compares = append(t.Compares, store.Compare{Key: keySerial, ModRevision: w.base.serialMod})
	t.Ops = append(t.Ops, store.Put(keySerial, []byte(strconv.FormatInt(w.base.rev, 10))))
	return t
}

// stamp tells the revision in what is returned.
func (w *write) stamp(revision int64) {
	for _, ch := range w.changes {
		if ch.Action == apiv1.Change_ACTION_CREATED || ch.Action == apiv1.Change_ACTION_UPDATED {
			ch.After.Revision = revision
		}
	}
}

func (v *view) leaderMod() int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.leader.ModRevision
}
