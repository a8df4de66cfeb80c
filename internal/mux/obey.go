package mux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

// obey applies the manager's plan, except for the VIPs for which the tables have no room. The
// caller holds applying.
func (a *Agent) obey(ctx context.Context, told plan.Plan) error {
	var err error
	if told.Endpoints, err = plan.Order(told.Endpoints); err != nil {
		return err
	}
	f := a.fittingTo(told)
	for err = a.follow(ctx, f); err != nil && a.refused(f, err); {
		err = a.follow(ctx, f)
	}
	return err
}

// follow applies a fitting plan and keeps retired VIPs. It handles only differences from the
// applied plan, because one change among 20,000 endpoints must not cost as much as all of them. An
// error that is a dataplane.NoRoom has changed nothing.
func (a *Agent) follow(ctx context.Context, f *fitting) error {
	told := f.plan()
	first := a.adoptRoutes(ctx)
	peers, peersErr := peersOf(told.Node.BGP, a.peers, a.o.ReadFile)

	changes, now := plan.Differences(a.plan.Endpoints, told.Endpoints), a.o.Clock.Now()
	lingered, linger := a.linger, a.linger
	p, rest := linger.extend(told, a.plan, changes, f.forgotten(), now, a.o.Linger)
	s := a.stepTo(p, rest, first || a.unsure)
	a.mu.Lock()
	a.linger = linger
	decisions := a.roster.apply(s.changes, now)
	withdrawn := a.forgetRoutesLocked(told, changes)
	a.mu.Unlock()
	if len(withdrawn) > 0 {
		a.withdrawFirst(ctx, told, peers)
	}
	a.wantLeased()
	a.wantOuters(s.changes)

	err := a.applyTables(s)
	if full := (*dataplane.NoRoom)(nil); err != nil && len(linger.until) > 0 && !errors.As(err, &full) {
		a.takeBack(s, decisions)
		s = a.stepTo(told, changes, true)
		a.mu.Lock()
		a.linger.until = nil
		decisions = a.roster.apply(s.changes, now)
		a.mu.Unlock()
		a.wantOuters(s.changes)
		err = a.applyTables(s)
	}
	if a.unsure = err != nil; a.unsure {
		a.takeBack(s, decisions)
		a.mu.Lock()
		for _, vip := range withdrawn {
			a.inTables[vip], a.routesMoved = true, true
		}
		a.linger = lingered
		a.mu.Unlock()
		notify.Send(a.speak)
		return err
	}

	a.mu.Lock()
	a.told, a.peers = f.told, peers
	a.withheldLocked(f)
	a.knowRoutesLocked(told, changes, lingered)
	a.takenLocked(s)
	stateErr := a.announcementFaultLocked()
	a.mu.Unlock()
	return errors.Join(peersErr, stateErr, a.obeyed(s))
}

// takenLocked makes the plan of a step that the tables took the applied plan.
func (a *Agent) takenLocked(s step) {
	a.plan = s.after
	a.roster.prune()
	a.drain.set(a.o.Clock.Now(), func(d *drain) { d.plan = s.after.Node.Drain })
	if a.ready {
		return
	}
	a.ready = true
	close(a.obeys)
	// A route of a previous agent to a VIP outside the plan must not exempt the VIP from the
	// hold-down later.
	maps.DeleteFunc(a.comeback.offered, func(vip netip.Addr, _ bool) bool { return !a.inTables[vip] })
	if s.after.Node.Drain {
		a.drain.since = time.Time{} // it was drained before this agent started
	}
}

// obeyed propagates a step that the tables took to all other components.
func (a *Agent) obeyed(s step) error {
	a.schedules.follow(s.changes)
	if a.o.Sources != nil && s.whole {
		a.o.Sources(s.after.TunnelSources)
	}
	a.keepRules(s)
	late := a.dropOuters(s.changes)
	err := a.followTargets()
	for _, c := range []chan struct{}{a.speak, a.changed, a.sweep, a.lingers, a.paths, a.schedules.due} {
		notify.Send(c)
	}
	if a.o.Leases != nil {
		a.o.Leases.Obeyed()
	}
	if late {
		a.followPaths()
	}
	return err
}

// takeBack undoes the preparations for a step that the tables refused.
func (a *Agent) takeBack(s step, decisions map[lb.EndpointKey]health.Decision) {
	a.mu.Lock()
	a.roster.takeBack(s.changes, decisions, a.o.Clock.Now())
	// Probe results may have been judged by the plan that was refused.
	keys := s.keys()
	a.setHealthLocked(keys)
	a.markFollowedLocked(keys)
	a.mu.Unlock()
	for _, c := range s.changes {
		a.outers.remove(c.After)
	}
	a.tellOuters()
	a.sources.prune(s.before)
}

// forgetRoutesLocked removes VIPs that the manager's plan no longer has from those that may be
// announced, and returns them.
func (a *Agent) forgetRoutesLocked(told plan.Plan, changes []plan.EndpointChange) (withdrawn []netip.Addr) {
	var left []netip.Addr
	if a.ready {
		left = leftVIPs(told, a.plan, changes)
	} else {
		// VIPs that a previous agent announced.
		outbound := told.OutboundVIPs()
		for vip := range a.inTables {
			if !plan.HasVIP(told.Endpoints, outbound, vip) {
				left = append(left, vip)
			}
		}
	}
	for _, vip := range left {
		if a.inTables[vip] {
			delete(a.inTables, vip)
			withdrawn = append(withdrawn, vip)
		}
	}
	a.routesMoved = a.routesMoved || len(withdrawn) > 0
	return withdrawn
}

// knowRoutesLocked adds the VIPs of the manager's plan that are now in the tables to those that may
// be announced: new ones, and retired ones that came back.
func (a *Agent) knowRoutesLocked(told plan.Plan, changes []plan.EndpointChange, lingered lingering) {
	know := func(vip netip.Addr) {
		if !a.inTables[vip] {
			a.inTables[vip], a.routesMoved = true, true
		}
	}
	for _, c := range changes {
		if c.After != nil {
			know(c.After.Key.VIP)
		}
	}
	outbound := a.told.OutboundVIPs()
	for vip := range outbound {
		know(vip)
	}
	for vip := range lingered.until {
		if plan.HasVIP(told.Endpoints, outbound, vip) {
			know(vip)
		}
	}
}

// announcementFaultLocked returns why some routes cannot be announced; nil: all can.
func (a *Agent) announcementFaultLocked() error {
	a.judgeLocked()
	if (announcement{node: a.plan.Node, fallback: a.o.Addresses}).whole() {
		return nil
	}
	_, err := a.announcementLocked().state()
	return err
}

// keepRules stores the rules of VIPs after the tables took a step.
func (a *Agent) keepRules(s step) {
	if !plan.SameSlice(s.before.Services, s.after.Services) || !plan.SameSlice(s.before.Sources, s.after.Sources) {
		a.sources.prune(s.after)
	}
	a.rules.obey(s.turned)
}

// applyTables applies a step to the tables under the current health and path MTUs.
func (a *Agent) applyTables(s step) error {
	endpoints, keys := s.after.Endpoints, s.keys()
	var vips []dataplane.MuxVIP
	if !s.whole {
		vips, endpoints = s.touched()
	} else {
		for i := range endpoints {
			keys = append(keys, endpoints[i].Key)
		}
	}
	// Prepare rings without the lock: they depend on the plan alone, and 20,000 of them take
	// seconds, for which probe results must not wait.
	a.rings.prepare(endpoints)
	a.mu.Lock()
	mtus := a.pathMTUsLocked(s.after.MTU, endpoints)
	now := present{
		rings: &a.rings, sources: a.sources, bit: a.roster.bit, decision: a.roster.decision,
		mtu: func(outer netip.Addr) uint32 { return mtus[outer] }, cids: s.after.CIDs, cookies: s.after.Cookies,
	}
	apply := func() error { return nil }
	if s.whole {
		want := wantedTables(s.after, now)
		apply = func() error { return a.o.Tables.Apply(want) }
	} else {
		want := wantedChange(vips, endpoints, now)
		apply = func() error { return a.o.Tables.Change(want) }
	}
	a.markOpenLocked(keys)
	a.mu.Unlock()
	if err := a.translate(s); err != nil {
		return err
	}
	err := apply()
	a.keepRings(s, endpoints, err == nil)
	if err != nil {
		return fmt.Errorf("apply tables: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.followedLocked(s, keys, mtus)
}

// keepRings records the rings that the tables now have for the endpoints of a step.
func (a *Agent) keepRings(s step, endpoints []plan.Endpoint, obeyed bool) {
	if s.whole {
		a.rings.obeyed(endpoints, obeyed)
		return
	}
	a.rings.changed(endpoints, obeyed)
	for _, c := range s.changes {
		if c.After == nil {
			a.rings.forget(c.Before.Key)
		}
	}
}

// followedLocked updates, in tables that took a step, the health of endpoints and the other state
// that a step does not contain.
func (a *Agent) followedLocked(s step, keys []lb.EndpointKey, mtus map[netip.Addr]uint32) error {
	if s.whole {
		a.mtus = mtus
	} else {
		maps.Copy(a.mtus, mtus)
	}
	// Tables that outlived an agent keep their bits, and health may have changed since the step was
	// built.
	a.setHealthLocked(keys)
	a.markFollowedLocked(keys)
	if s.whole {
		a.unmarkOthersLocked()
	}
	if s.whole || !a.hopsTold {
		return a.setHopsLocked(s.after)
	}
	return nil
}

// setHealthLocked writes the health of all members of endpoints, and the decisions on backups, to
// the tables.
func (a *Agent) setHealthLocked(keys []lb.EndpointKey) {
	var bits []dataplane.MemberAlive
	backups := make(map[lb.EndpointKey]bool, len(keys))
	for _, key := range keys {
		if g := a.roster.groups[key]; g != nil {
			bits = append(bits, a.roster.bits(g)...)
			backups[key] = g.decision.Backup
		}
	}
	a.o.Tables.SetAlive(bits)
	a.o.Tables.SetBackup(backups)
}
