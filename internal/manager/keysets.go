package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
)

// Defaults of Options.
const (
	// DefaultKeyLifetime is short relative to the value of a captured key, and long relative to the
	// overlap with the previous key.
	DefaultKeyLifetime = 7 * 24 * time.Hour
	// DefaultKeyRest is the maximum time that a connection may be silent without being kept
	// elsewhere (protocol section 1.6).
	DefaultKeyRest = 24 * time.Hour
)

const (
	// keysPace is the minimum time between two scans of the keys. The pause is also at least
	// keysRest times the duration of the last scan, up to keysLook, because scans would otherwise
	// use a whole CPU and hold the view's lock while 20,000 VIPs wait for a node that is away for
	// days.
	keysPace = 100 * time.Millisecond
	keysRest = 10
	// keysLook is the interval of scans for keys that are due by time.
	keysLook = time.Minute
	// keysPatience is how long a phase may wait for nodes before it causes an event.
	keysPatience = time.Minute
)

// errKeysConflict reports a concurrent write. The steps must be computed again.
var errKeysConflict = errors.New("too many writes at once")

// keyDuty is the controller that advances keys when nodes have acknowledged a phase or its time is
// over, and rotates old keys.
type keyDuty struct {
	m *Manager
	// waited maps key sets to the revision at which the phase began whose waiting was already
	// reported.
	waited map[keySetID]int64
	// looked is the duration of the last scan.
	looked time.Duration
	wake   chan struct{} // room for one
}

func newKeyDuty(m *Manager) *keyDuty {
	return &keyDuty{m: m, waited: map[keySetID]int64{}, wake: make(chan struct{}, 1)}
}

// note implements subscriber.
func (k *keyDuty) note(c change) {
	if c.keys || len(c.objects) > 0 {
		notify.Send(k.wake)
	}
}

// run handles keys until ctx ends.
func (k *keyDuty) run(ctx context.Context) {
	k.m.view.subscribe(k)
	defer k.m.view.unsubscribe(k)
	for {
		under, err := k.round(ctx)
		if err != nil && ctx.Err() == nil && !errors.Is(err, errKeysConflict) {
			k.m.o.Log.Warn("cannot take the steps of keys", "error", err)
		}
		select {
		case <-k.m.o.Clock.After(max(keysPace, min(keysRest*k.looked, keysLook))):
		case <-ctx.Done():
			return
		}
		if under || err != nil {
			continue
		}
		select {
		case <-k.wake:
		case <-k.m.o.Clock.After(keysLook):
		case <-ctx.Done():
			return
		}
	}
}

// keyStep is one change of a key set to be stored.
type keyStep struct {
	id   keySetID
	mod  int64
	next plan.KeySet
	// rotates reports whether it begins a rotation.
	rotates bool
}

// round stores every due step, and reports whether some phases wait for nodes.
func (k *keyDuty) round(ctx context.Context) (under bool, err error) {
	base, now := k.m.view.snapshot(), k.m.o.Clock.Now().Round(0).UTC()
	steps, waiting := k.m.keySteps(now)
	k.looked = k.m.o.Clock.Now().Sub(now)
	for id, w := range waiting {
		k.tellWaiting(id, w, now)
	}
	for id := range k.waited {
		if _, still := waiting[id]; !still {
			delete(k.waited, id)
		}
	}
	for len(steps) > 0 {
		some := steps[:min(len(steps), keepOps)]
		steps = steps[len(some):]
		if err := k.m.storeKeySteps(ctx, base, some); err != nil {
			return true, err
		}
		if len(steps) > 0 {
			base = k.m.view.snapshot()
		}
	}
	return len(waiting) > 0, nil
}

// waitingKeys is a phase that waits for nodes.
type waitingKeys struct {
	set   plan.KeySet
	mod   int64
	nodes []string
}

// keySteps returns the due steps, sorted, and the phases that wait for nodes.
func (m *Manager) keySteps(now time.Time) (steps []keyStep, waiting map[keySetID]waitingKeys) {
	v := m.view
	v.mu.RLock()
	defer v.mu.RUnlock()
	acks := m.newAcksLocked()
	waiting = map[keySetID]waitingKeys{}
	v.eachKeySetLocked(func(id keySetID, set plan.KeySet, mod int64) {
		var nodes []string
		switch {
		case !v.neededLocked(id):
			return // it continues when the keys are needed again
		case set.Phase == plan.KeysSteady && !set.Due(m.o.KeyRest, m.lifetime(id)).IsZero() && !now.Before(set.Due(m.o.KeyRest, m.lifetime(id))):
			if next, wrong := set.Rotate(newKey(), id.shuffles(), now, m.o.KeyRest); wrong == "" {
				steps = append(steps, keyStep{id, mod, next, true})
			}
			return
		case set.Waits():
			nodes = acks.missingLocked(id, &set, mod)
		}
		if next, over := set.Step(now, len(nodes) == 0, m.o.KeyRest); over {
			steps = append(steps, keyStep{id: id, mod: mod, next: next})
		} else if len(nodes) > 0 {
			waiting[id] = waitingKeys{set, mod, nodes}
		}
	})
	slices.SortFunc(steps, func(a, b keyStep) int { return compareKeySets(a.id, b.id) })
	return steps, waiting
}

// lifetime returns the age at which keys are rotated; 0: never. Keys of connection ids have a
// lifetime of their own, because servers must fetch new ones themselves.
func (m *Manager) lifetime(id keySetID) time.Duration {
	if id.purpose() == plan.KeysOfCIDs {
		return max(0, m.o.CIDKeyLifetime)
	}
	return max(0, m.o.KeyLifetime)
}

// eachKeySetLocked calls f for every key set.
func (v *view) eachKeySetLocked(f func(id keySetID, set plan.KeySet, mod int64)) {
	for vip, set := range v.state.Cookies {
		f(cookiesOf(vip), set, v.keyMods[cookiesOf(vip)])
	}
	for service, set := range v.state.CIDs {
		f(cidsOf(service), set, v.keyMods[cidsOf(service)])
	}
}

// serviceOfLocked returns the service that has the keys, or nil.
func (v *view) serviceOfLocked(id keySetID) *lb.Service {
	if id.service != "" {
		return v.state.Services[id.service]
	}
	return v.vips.claims[id.vip]
}

// neededLocked reports whether nodes need the keys.
func (v *view) neededLocked(id keySetID) bool {
	svc := v.serviceOfLocked(id)
	if svc == nil || id.purpose().Needs(svc) {
		return svc != nil
	}
	if id.service == "" {
		return plan.KeysOfCookies.Fade(svc, id.vip.VIP, v.state.Endpoints)
	}
	return slices.ContainsFunc(svc.VIPs, func(vip netip.Addr) bool { return plan.KeysOfCIDs.Fade(svc, vip, v.state.Endpoints) })
}

// nodesOfPhaseLocked returns the nodes that must apply a phase before it ends.
func (v *view) nodesOfPhaseLocked(id keySetID, phase plan.KeyPhase) []string {
	if phase == plan.KeysSwitch {
		if id.service != "" {
			return nil // servers fetch it
		}
		return v.stampingNodesLocked(id.vip)
	}
	var out []string
	for _, vip := range v.vipsOfKeysLocked(id) {
		where := v.whereLocked(vip)
		if where.every {
			return v.muxNamesLocked()
		}
		out = append(out, where.names...)
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(name string) bool { return v.state.Nodes[name] == nil })
}

// vipsOfKeysLocked returns the VIPs that the keys are for.
func (v *view) vipsOfKeysLocked(id keySetID) []place.Key {
	if id.service == "" {
		return []place.Key{id.vip}
	}
	var out []place.Key
	for _, vip := range v.vipsLocked(id.service) {
		out = append(out, plan.VIPKey(vip))
	}
	return out
}

// muxNamesLocked returns the names of all muxes, sorted.
func (v *view) muxNamesLocked() []string {
	return slices.Sorted(maps.Keys(v.muxes))
}

// acks caches the revisions that nodes have applied, as reported to the leader. A disconnected node
// keeps its last applied revision.
type acks struct {
	m     *Manager
	known map[string]int64
}

// newAcksLocked returns an empty cache. The view must be locked, because then sessions have been
// notified of all changes in it.
func (m *Manager) newAcksLocked() acks { return acks{m, map[string]int64{}} }

// of returns the revision that a node has applied. It is the view's revision if no later change
// concerned the node.
func (a acks) of(name string) int64 {
	if rev, ok := a.known[name]; ok {
		return rev
	}
	rev := a.m.reports.newest([]string{name})[0].status.GetSyncedRevision()
	if s := a.m.sessions.get(name); s != nil {
		if s.via != nil {
			rev = max(rev, s.via.settled(name))
		} else if s.settled() {
			rev = a.m.view.planRev
		}
	}
	a.known[name] = rev
	return rev
}

// missingLocked returns the sorted names of the nodes that the present phase, begun at revision,
// waits for: nodes that it concerns and that have not applied it. In addition to the muxes that
// serve a VIP these are muxes that may still do so by an older plan: they have not applied the
// present one, and have not reported that they lack the VIP. While there is one key and no host has
// it, disconnected muxes do not count, because any plan of theirs with cookies has the key.
func (a acks) missingLocked(id keySetID, set *plan.KeySet, revision int64) (out []string) {
	v := a.m.view
	about := v.nodesOfPhaseLocked(id, set.Phase)
	first := len(set.OfHosts()) == 0 && len(set.Keys) == 1
	for _, name := range about {
		if a.of(name) < revision && !(first && a.m.sessions.get(name) == nil) {
			out = append(out, name)
		}
	}
	if first || set.Phase == plan.KeysSwitch {
		return out
	}
	for _, name := range v.muxNamesLocked() {
		if !slices.Contains(about, name) && a.of(name) < revision && a.mayServe(name, v.vipsOfKeysLocked(id)) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// mayServe reports whether a mux may have one of the VIPs in the plan that it applied. It returns
// false only if the mux left and its last report has none of them.
func (a acks) mayServe(name string, vips []place.Key) bool {
	said := a.m.reports.newest([]string{name})[0]
	if !said.reported || said.status.GetConnected() {
		return true
	}
	seen := seenMux{status: said.status}
	return slices.ContainsFunc(vips, func(vip place.Key) bool {
		text := vip.VIP.String()
		return seen.advertises(vip.VIP) || slices.ContainsFunc(said.status.GetMembers(), func(m *apiv1.MemberStatus) bool { return m.GetVip() == text })
	})
}

// storeKeySteps stores steps that were computed from a snapshot.
func (m *Manager) storeKeySteps(ctx context.Context, base *snapshot, steps []keyStep) error {
	t, err := m.lead(ctx)
	if err != nil {
		return err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	w := newWrite(base)
	for _, s := range steps {
		if err := w.putKeySet(s.id, s.mod, &s.next); err != nil {
			return err
		}
	}
	res, err := t.commit(ctx, w.fenced())
	if err != nil {
		return err
	}
	if err := t.wait(ctx, res.Revision); err != nil {
		return err
	}
	if !res.Succeeded {
		return errKeysConflict
	}
	m.o.Log.Debug("took steps of keys", "steps", len(steps), "revision", res.Revision)
	for i := range steps {
		m.tellKeyStep(&steps[i], res.Revision)
	}
	return nil
}

// tellKeyStep records the events of a stored step.
func (m *Manager) tellKeyStep(s *keyStep, revision int64) {
	newest := s.next.Keys[len(s.next.Keys)-1].Epoch
	switch {
	case s.rotates:
		m.keyEvent(s.id, reasonKeysRotating, revision, "%s: muxes get the key of epoch %d", s.id.words(), newest)
	case s.next.Phase == plan.KeysRest:
		m.keyEvent(s.id, reasonKeysRotated, revision, "%s: what is new is made with epoch %d; epoch %d is read until %s", s.id.words(), newest, s.next.Keys[0].Epoch,
			s.next.Since.Add(m.o.KeyRest).UTC().Format(time.RFC3339))
	}
}

// words returns the name of the keys in messages.
func (id keySetID) words() string {
	if id.purpose() == plan.KeysOfCIDs {
		return "connection ids of " + id.service
	}
	return "cookies of " + id.scope()
}

// keyEvent records an event of the service that has the keys.
func (m *Manager) keyEvent(id keySetID, reason string, revision int64, format string, args ...any) {
	m.view.mu.RLock()
	svc := m.view.serviceOfLocked(id)
	m.view.mu.RUnlock()
	if svc == nil {
		return
	}
	m.event(&apiv1.Event{
		Kind: string(lb.KindService), Name: svc.Name, Tenant: svc.Tenant, Reason: reason, Count: 1, Revision: revision, Message: fmt.Sprintf(format, args...),
	})
}

// tellWaiting records an event, once per phase, if a phase has waited long for nodes.
func (k *keyDuty) tellWaiting(id keySetID, w waitingKeys, now time.Time) {
	if k.waited[id] == w.mod || now.Sub(w.set.Since) < keysPatience {
		return
	}
	k.waited[id] = w.mod
	k.m.keyEvent(id, reasonKeysWaiting, w.mod, "%s: phase %s of epoch %d waits for %s", id.words(), w.set.Phase, w.set.Keys[len(w.set.Keys)-1].Epoch, fewNames(w.nodes))
}

// fewNames returns the first names as part of a sentence.
func fewNames(names []string) string {
	const few = 5
	if more := len(names) - few; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), more)
	}
	return cmp.Or(strings.Join(names, ", "), "nobody")
}
