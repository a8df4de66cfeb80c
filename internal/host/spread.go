package host

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// spreads holds the members on this host over which packets from switches are spread, by endpoint,
// as the tables have them. A ring is rebuilt only when its inputs changed.
type spreads struct {
	builder ring.Builder
	made    map[lb.EndpointKey]madeSpread
}

// madeSpread is the spread of an endpoint in the tables, with its inputs.
type madeSpread struct {
	of  []spreadSeat
	own []netip.Addr
	out *dataplane.HostSpread
}

// spreadSeat is a member in its endpoint's spread.
type spreadSeat struct {
	id, named uint16
	outer     netip.Addr
	dip       netip.Addr
	port      uint16
	weight    uint16
	rewrite   bool
	dead      bool
}

// follow returns the spreads of the bindings' endpoints. Leavers and draining members keep their
// flows; a dead member gets no packets.
func (s *spreads) follow(bindings []plan.Binding, leavers []leaver, own []netip.Addr, dead func(memberRef) bool) []*dataplane.HostSpread {
	seats := map[lb.EndpointKey][]spreadSeat{}
	add := func(b *plan.Binding, weight uint16) {
		seats[b.Key] = append(seats[b.Key], spreadSeat{
			id: b.Member, named: b.TunnelMember(), outer: b.Outer, dip: b.DIP, port: b.DIPPort, weight: weight, rewrite: b.Rewrite,
			dead: dead(memberRef{b.Key, b.Member}),
		})
	}
	for i := range bindings {
		add(&bindings[i], bindings[i].Share)
	}
	for i := range leavers {
		if len(seats[leavers[i].Key]) > 0 {
			add(&leavers[i].Binding, 0)
		}
	}
	made := make(map[lb.EndpointKey]madeSpread, len(seats))
	out := make([]*dataplane.HostSpread, 0, len(seats))
	for key, all := range seats {
		// Sort members that take new flows first, so that they are among those that fit.
		slices.SortFunc(all, func(a, b spreadSeat) int {
			return cmp.Or(cmp.Compare(min(b.weight, 1), min(a.weight, 1)), cmp.Compare(a.id, b.id), cmp.Compare(a.named, b.named), a.outer.Compare(b.outer))
		})
		m, ok := s.made[key]
		if !ok || !slices.Equal(m.of, all) || !slices.Equal(m.own, own) {
			m = madeSpread{of: all, own: own, out: s.make(key, all, own)}
		}
		made[key] = m
		out = append(out, m.out)
	}
	s.made = made
	slices.SortFunc(out, func(a, b *dataplane.HostSpread) int { return plan.CompareKeys(a.Key, b.Key) })
	return out
}

// make returns the spread of one endpoint. Its ring has the members on this host, with the slots of
// dead ones reassigned.
func (s *spreads) make(key lb.EndpointKey, all []spreadSeat, own []netip.Addr) *dataplane.HostSpread {
	all = all[:min(len(all), dataplane.MaxSpread)]
	out := &dataplane.HostSpread{Key: key, Rewrite: all[0].rewrite, Addresses: own}
	seats := make([]ring.Seat, 0, len(all))
	weights := make([]uint16, 0, len(all))
	usable := false
	for i, m := range all {
		seat := ring.Seat{Member: ring.Member{ID: uint16(i), DIP: m.dip, Port: m.port, Weight: m.weight}, Down: m.dead}
		if !m.dead {
			out.Members = append(out.Members, dataplane.SpreadMember{Outer: m.outer, Member: m.named})
			usable = usable || m.weight > 0
		} else {
			out.Members = append(out.Members, dataplane.SpreadMember{})
		}
		seats, weights = append(seats, seat), append(weights, m.weight)
	}
	if usable {
		out.Code = ring.SizeCode(weights, 0)
		out.Ring = s.builder.Walked(out.Code, seats)
	}
	return out
}

// spreadLocked sets the state's spreads; without switches there are none. applying is held.
func (a *Agent) spreadLocked(s *dataplane.HostState, leavers []leaver) {
	if len(s.Switches) == 0 {
		s.Spreads, a.spreads.made = nil, nil
		return
	}
	s.Spreads = a.spreads.follow(s.Bindings, leavers, a.own, a.checks.dead)
}

// dead reports whether a member is dead by this host's own checks.
func (c *checks) dead(ref memberRef) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[ref]
	return m != nil && m.said == saidDead
}

// poke notifies that members changed their health.
func (a *Agent) poke() {
	notify.Send(a.flipped)
}

// Respread updates the tables so that new flows from switches go to members that are not dead now.
func (a *Agent) Respread() error {
	a.applying.Lock()
	defer a.applying.Unlock()
	next := a.state
	a.spreadLocked(&next, a.leavers)
	if slices.Equal(next.Spreads, a.state.Spreads) {
		return nil
	}
	if err := a.tables.Apply(withLeavers(next, a.leavers)); err != nil {
		return err
	}
	a.state = next
	return nil
}

// respreadAll calls Respread whenever members changed their health, until ctx ends.
func (a *Agent) respreadAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.flipped:
		}
		if err := a.Respread(); err != nil {
			a.log.Error("spread what switches send", "error", err)
		}
	}
}
