package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// dirTunnels has StoredTunnels by Network.
const dirTunnels = root + "tunnels/"

const (
	// tunnelsPace is the minimum time between two checks of changes of tunnelSources that wait for
	// nodes.
	tunnelsPace = 100 * time.Millisecond
	// tunnelsPatience is how long a phase waits for nodes of which this leader has no report, and
	// the wait for other nodes after which an event is recorded.
	tunnelsPatience = time.Minute
)

// errTunnelsConflict: another write came first. The step is computed again.
var errTunnelsConflict = errors.New("too many writes at once")

// foldTunnelsLocked applies a stored change of tunnelSources to the view.
func (v *view) foldTunnelsLocked(ev store.Event, c *change) error {
	name := strings.TrimPrefix(ev.KV.Key, dirTunnels)
	c.surroundings, c.tunnels = true, true
	if ev.Deleted {
		delete(v.state.Tunnels, name)
		delete(v.tunnelMods, name)
		return nil
	}
	stored := &apiv1.StoredTunnels{}
	if err := proto.Unmarshal(ev.KV.Value, stored); err != nil {
		return err
	}
	next := plan.TunnelChange{Phase: plan.TunnelPhase(stored.GetPhase()), Since: stored.GetSince().AsTime()}
	for _, list := range []struct {
		from []string
		to   *[]netip.Prefix
	}{{stored.GetMuxes(), &next.Muxes}, {stored.GetFormer(), &next.Former}} {
		for _, text := range list.from {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return err
			}
			*list.to = append(*list.to, p)
		}
	}
	v.state.Tunnels[name], v.tunnelMods[name] = next, ev.KV.ModRevision
	return nil
}

// tunnels returns the changes of Networks that are in progress, and the revisions of their keys.
func (s *snapshot) tunnels() (under map[string]plan.TunnelChange, mods map[string]int64) {
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return maps.Clone(s.v.state.Tunnels), maps.Clone(s.v.tunnelMods)
}

// putTunnels adds a change to the transaction. nil deletes it.
func (w *write) putTunnels(network string, mod int64, c *plan.TunnelChange) error {
	key := dirTunnels + network
	w.txn.Compares = append(w.txn.Compares, store.Compare{Key: key, ModRevision: mod})
	if c == nil {
		w.txn.Ops = append(w.txn.Ops, store.Delete(key))
		return nil
	}
	value, err := proto.Marshal(&apiv1.StoredTunnels{Muxes: prefixTexts(c.Muxes), Former: prefixTexts(c.Former), Phase: string(c.Phase), Since: timestamppb.New(c.Since)})
	w.txn.Ops = append(w.txn.Ops, store.Put(key, value))
	return err
}

func prefixTexts(of []netip.Prefix) (out []string) {
	for _, p := range of {
		out = append(out, p.String())
	}
	return out
}

// retunnel begins the changes of tunnelSources that new, changed and deleted Networks need, and
// deletes those of removed Networks.
func (w *write) retunnel(now time.Time) error {
	if !slices.ContainsFunc(slices.Collect(maps.Keys(w.edited)), func(r ref) bool { return r.kind == lb.KindNetwork }) {
		return nil
	}
	was := w.base.networks()
	is := slices.Clone(was)
	for r, o := range w.edited {
		if r.kind != lb.KindNetwork {
			continue
		}
		is = slices.DeleteFunc(is, func(n *lb.Network) bool { return n.Name == r.name })
		if n, ok := o.(*lb.Network); ok && n != nil {
			is = append(is, n)
		}
	}
	is = lb.SortNetworks(is)
	under, mods := w.base.tunnels()
	next := plan.NextTunnels(was, under, is, now)
	if err := acceptable(is, next); err != nil {
		return err
	}
	for name := range under {
		if _, goesOn := next[name]; !goesOn {
			if err := w.putTunnels(name, mods[name], nil); err != nil {
				return err
			}
		}
	}
	for _, n := range is {
		c, changes := next[n.Name]
		same := slices.ContainsFunc(was, func(o *lb.Network) bool { return o.Name == n.Name && slices.Equal(o.TunnelSources, n.TunnelSources) })
		if before, had := under[n.Name]; !changes || had && same && reflect.DeepEqual(before, c) {
			continue
		}
		if count := len(c.Accepted(n.TunnelSources)); !same && count > maxTunnelsUnderWay {
			return invalid{[]lb.Violation{{Field: lb.Ref(lb.KindNetwork, n.Name) + ": tunnelSources", Allowed: fmt.Sprintf("must not change again before the changes under way are over: hosts would accept %d prefixes, at most %d", count, maxTunnelsUnderWay)}}}
		}
		if err := w.putTunnels(n.Name, mods[n.Name], &c); err != nil {
			return err
		}
	}
	return nil
}

// maxTunnelsUnderWay bounds the prefixes that hosts accept of one Network while its tunnelSources
// change: four changes of both families.
const maxTunnelsUnderWay = 8

// maxAccepted bounds the prefixes that hosts accept of all Networks during changes, including those
// of switches. The data plane holds lb.MaxTunnelSources and one more for each family in use, which
// is at least one.
const maxAccepted = lb.MaxTunnelSources + 1

// acceptable returns an error for changes during which hosts would have to accept more prefixes
// than they can hold. Hosts would refuse every plan, and the changes would not end.
func acceptable(is lb.Networks, changes map[string]plan.TunnelChange) error {
	if len(is) == 0 || len(changes) == 0 {
		return nil
	}
	during := plan.TunnelledNetworks(is, changes, lb.RoleHost)
	count := len(during.TunnelSources(during[0])) + len(is.Switches())
	if count <= maxAccepted {
		return nil
	}
	return invalid{[]lb.Violation{{Field: "networks: tunnelSources", Value: fmt.Sprintf("%d prefixes", count), Allowed: fmt.Sprintf("must change in smaller steps, each after the ones before are over: hosts accept at most %d prefixes of all Networks, former ones included", maxAccepted)}}}
}

// tunnelDuty is the controller that executes the steps of changes of tunnelSources.
type tunnelDuty struct {
	m     *Manager
	began time.Time
	// waited holds the phases whose wait was reported by an event, by the revision at which they
	// began.
	waited map[string]int64
	wake   chan struct{} // room for one
}

func newTunnelDuty(m *Manager) *tunnelDuty {
	return &tunnelDuty{m: m, waited: map[string]int64{}, wake: make(chan struct{}, 1)}
}

// note implements subscriber.
func (d *tunnelDuty) note(c change) {
	if c.tunnels {
		notify.Send(d.wake)
	}
}

// run works until ctx ends.
func (d *tunnelDuty) run(ctx context.Context) {
	d.m.view.subscribe(d)
	defer d.m.view.unsubscribe(d)
	d.began = d.m.o.Clock.Now()
	for {
		under, err := d.round(ctx)
		if err != nil && ctx.Err() == nil && !errors.Is(err, errTunnelsConflict) {
			d.m.o.Log.Warn("cannot take the steps of tunnel sources", "error", err)
		}
		var again <-chan time.Time
		if under || err != nil {
			again = d.m.o.Clock.After(tunnelsPace)
		}
		select {
		case <-again:
		case <-d.wake:
		case <-ctx.Done():
			return
		}
	}
}

// tunnelStep is a step that is due.
type tunnelStep struct {
	network string
	mod     int64
	next    *plan.TunnelChange // nil: the change is over
}

// round executes the steps that are due, and reports whether a change is in progress.
func (d *tunnelDuty) round(ctx context.Context) (under bool, err error) {
	base, now := d.m.view.snapshot(), d.m.o.Clock.Now().Round(0).UTC()
	steps, under := d.steps(now)
	if len(steps) == 0 {
		return under, nil
	}
	t, err := d.m.lead(ctx)
	if err != nil {
		return true, err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	w := newWrite(base)
	for _, s := range steps {
		if err := w.putTunnels(s.network, s.mod, s.next); err != nil {
			return true, err
		}
	}
	res, err := t.commit(ctx, w.fenced())
	if err != nil {
		return true, err
	}
	if err := t.wait(ctx, res.Revision); err != nil {
		return true, err
	}
	if !res.Succeeded {
		return true, errTunnelsConflict
	}
	for _, s := range steps {
		phase := "over"
		if s.next != nil {
			phase = string(s.next.Phase)
		}
		d.m.o.Log.Info("tunnel sources change", "network", s.network, "phase", phase, "revision", res.Revision)
	}
	return true, nil
}

// steps returns the steps that are due, sorted by Network. under reports whether a change is in
// progress.
func (d *tunnelDuty) steps(now time.Time) (steps []tunnelStep, under bool) {
	v := d.m.view
	v.mu.RLock()
	defer v.mu.RUnlock()
	acks := d.m.newAcksLocked()
	for name, c := range v.state.Tunnels {
		n, mod := v.state.Networks[name], v.tunnelMods[name]
		if n == nil {
			continue
		}
		under = true
		var missing []string
		for node, o := range v.state.Nodes {
			if o.Role == c.Role() && acks.of(node) < mod && !d.unheard(node, c.Since, now) {
				missing = append(missing, node)
			}
		}
		next, over, ends := c.Step(now, len(missing) == 0, n.TunnelSources)
		switch {
		case ends:
			steps = append(steps, tunnelStep{name, mod, nil})
		case over:
			steps = append(steps, tunnelStep{name, mod, &next})
		case len(missing) > 0 && now.Sub(c.Since) >= tunnelsPatience && d.waited[name] != mod:
			d.waited[name] = mod
			slices.Sort(missing)
			d.m.objectEvent(lb.KindNetwork, name, reasonTunnelsWaiting, "phase %s of its tunnelSources waits for %s", c.Phase, fewNames(missing))
		}
	}
	slices.SortFunc(steps, func(a, b tunnelStep) int { return strings.Compare(a.network, b.network) })
	return steps, under
}

// unheard reports whether a change need not wait for a node: this leader has had no report of it
// for tunnelsPatience. Such a node has no plan, or its reports do not reach the leader.
func (d *tunnelDuty) unheard(node string, since, now time.Time) bool {
	if d.m.sessions.get(node) != nil || d.m.reports.newest([]string{node})[0].reported {
		return false
	}
	return now.Sub(since) >= tunnelsPatience && now.Sub(d.began) >= tunnelsPatience
}
