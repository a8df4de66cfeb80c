package host

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// repairs holds the endpoints' previous owners as the tables have them. It folds the rings of an
// endpoint again only when its memberships changed.
type repairs struct {
	rings ringCache
	made  map[lb.EndpointKey]madeRepair
}

// madeRepair is the repair of an endpoint in the tables, with its inputs.
type madeRepair struct {
	of  plan.Repair
	own []netip.Addr
	// lost are the machines to which no packets are forwarded.
	lost []netip.Addr
	out  *dataplane.HostRepair
}

// follow returns the repairs of a plan, and folds changed ones. No packets are forwarded to lost
// machines. Endpoints with displaced slots are first, because if there is no room for all, the
// others are seldom needed. An endpoint without a target on one of this host's addresses is left
// out.
func (r *repairs) follow(p *plan.Plan, lost []netip.Addr) []*dataplane.HostRepair {
	made := make(map[lb.EndpointKey]madeRepair, len(p.Repairs))
	var out, cookies []*dataplane.HostRepair
	for i := range p.Repairs {
		want := &p.Repairs[i]
		m, ok := r.made[want.Key]
		without := lostOf(want, lost)
		if !ok || !slices.Equal(m.own, p.Node.Addresses) || !slices.Equal(m.lost, without) || !reflect.DeepEqual(&m.of, want) {
			m = madeRepair{of: *want, own: p.Node.Addresses, lost: without, out: r.make(want, p.Node.Addresses, without)}
		}
		made[want.Key] = m
		switch {
		case m.out == nil:
		case len(want.Memberships) == 1 && !want.Rotated:
			cookies = append(cookies, m.out)
		default:
			out = append(out, m.out)
		}
	}
	r.made = made
	return append(out, cookies...)
}

// lostOf returns those lost machines that have backends that left the endpoint.
func lostOf(in *plan.Repair, lost []netip.Addr) (out []netip.Addr) {
	if len(lost) == 0 {
		return nil
	}
	left := leftHosts(in)
	for _, host := range lost {
		if slices.Contains(left, host) {
			out = append(out, host)
		}
	}
	return out
}

// make folds an endpoint's memberships. It returns nil if no member is on this host. own are the
// addresses of this host, lost the machines to which no packets are forwarded.
func (r *repairs) make(in *plan.Repair, own, lost []netip.Addr) *dataplane.HostRepair {
	out := &dataplane.HostRepair{Key: in.Key, Hash: in.Hash.Key, Client: in.Source, ThreeTuple: in.Fragments == lb.Fragments3Tuple}
	targets := make(map[uint16]*plan.Target, len(in.Targets))
	for i := range in.Targets {
		targets[in.Targets[i].ID] = &in.Targets[i]
	}
	down := map[uint16]bool{}
	for _, s := range in.Memberships[len(in.Memberships)-1].Seats {
		down[s.ID] = s.Down
	}
	for _, t := range in.Targets {
		here := slices.Contains(own, t.Host)
		if here && !out.Source.IsValid() {
			out.Source = t.Host
		}
		if !here && !slices.Contains(out.Peers, t.Host) {
			out.Peers = append(out.Peers, t.Host)
		}
		if !down[t.ID] && !t.Fallen && !slices.Contains(lost, t.Host) {
			out.Targets = append(out.Targets, dataplane.HostTarget{ID: t.ID, Outer: t.Outer, Here: here})
		}
	}
	if !out.Source.IsValid() {
		return nil
	}
	if len(in.Memberships) == 1 && !in.Rotated {
		out.Turns = ring.Fold() // no slot had another owner
		return out
	}
	rings := make([][]uint16, len(in.Memberships))
	for i := range in.Memberships {
		m := &in.Memberships[i]
		if m.RingCode < ring.CodeMin || m.RingCode > ring.CodeMax {
			return nil
		}
		rings[i] = r.rings.walked(m, targets)
	}
	if in.Rotated {
		out.Turns = ring.FoldRotated(rings[0])
		return out
	}
	out.Turns = ring.Fold(rings...)
	return out
}
