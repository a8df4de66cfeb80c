package manager

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
	"github.com/shuntlb/shunt/internal/plan"
)

// placing holds the VIPs with fewer muxes than their services request. It is never modified.
type placing struct {
	problems map[place.Key]place.Problem
}

// tell stores the present problems, and records events of new ones.
func (p *placement) tell() {
	problems := map[place.Key]place.Problem{}
	for _, problem := range p.placer.Problems() {
		problems[problem.Key] = problem
		if p.problems[problem.Key] != problem {
			p.event(problem.Key, reasonUnplaced, 0, fmt.Sprintf("VIP %s is on %d of %d muxes: %s", problem.Key.VIP, problem.Placed, problem.Wanted, because(problem)))
		}
	}
	p.problems = problems
	p.m.placing.Store(&placing{problems: problems})
	overloaded := p.placer.Overloaded()
	for _, name := range overloaded {
		if !slices.Contains(p.overloaded, name) {
			p.m.event(&apiv1.Event{
				Kind: string(lb.KindNode), Name: name, Reason: reasonOverloaded,
				Message: fmt.Sprintf("mux %s gets more packets than its capacity of %d a second, and no other mux has room", name, p.muxes[name].Packets),
			})
		}
	}
	p.overloaded = overloaded
}

// because returns the reason why a VIP has fewer muxes than its service requests.
func because(p place.Problem) string {
	up := fmt.Sprintf("muxes that are up and do not drain: %d", p.Muxes)
	if p.Reason == place.Capacity {
		return up + ", none with room for it"
	}
	return up
}

// tellPlaced records the event of a stored place.
func (p *placement) tellPlaced(s storedPlace, revision int64) {
	if len(s.is.Muxes) == 0 || slices.Equal(s.was.Muxes, s.is.Muxes) {
		return
	}
	reason, message := reasonPlaced, fmt.Sprintf("VIP %s is placed on %s", s.key.VIP, strings.Join(s.is.Muxes, ", "))
	if len(s.was.Muxes) > 0 {
		reason, message = reasonMoved, fmt.Sprintf("VIP %s moves from %s to %s", s.key.VIP, strings.Join(s.was.Muxes, ", "), strings.Join(s.is.Muxes, ", "))
	}
	p.event(s.key, reason, revision, message)
}

func (p *placement) event(key place.Key, reason string, revision int64, message string) {
	w := p.vips[key]
	p.m.event(&apiv1.Event{
		Kind: string(lb.KindService), Name: w.service, Tenant: w.tenant, Reason: reason, Message: message, Revision: revision,
	})
}

// everyService stands for all services in requests for placements.
const everyService = "*"

// placements returns the places of the VIPs of a service, or of all services, sorted by service.
func (m *Manager) placements(service string, own owned) []*apiv1.VIPPlacement {
	var problems map[place.Key]place.Problem
	if now := m.placing.Load(); now != nil {
		problems = now.problems
	}
	v := m.view
	v.mu.RLock()
	defer v.mu.RUnlock()
	names := []string{service}
	if service == everyService {
		names = slices.Sorted(maps.Keys(v.state.Services))
	}
	var out []*apiv1.VIPPlacement
	for _, name := range names {
		svc := v.state.Services[name]
		if svc == nil || !own.has(name) {
			continue
		}
		wants := lb.Effective(svc, v.state.Policies).Placement.Replicas
		for _, vip := range svc.VIPs {
			out = append(out, v.placementLocked(svc, plan.VIPKey(vip), wants, problems))
		}
	}
	return out
}

// withVIPs adds the number of served VIPs to the statuses of muxes.
func (m *Manager) withVIPs(nodes []*apiv1.NodeStatus) {
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	every := len(m.view.vips.claims) - len(m.view.items.where)
	for i, st := range nodes {
		if n := m.view.state.Nodes[st.GetName()]; n != nil && n.Role == lb.RoleMux {
			nodes[i] = edited(st, func(out *apiv1.NodeStatus) { out.Vips = uint32(every + m.view.items.serves[st.GetName()]) })
		}
	}
}

// placementLocked returns the place of one VIP.
func (v *view) placementLocked(svc *lb.Service, key place.Key, replicas uint32, problems map[place.Key]place.Problem) *apiv1.VIPPlacement {
	out := &apiv1.VIPPlacement{Service: svc.Name, Vip: key.VIP.String(), Replicas: replicas}
	p, decided := v.state.Places[key]
	if replicas == 0 || !decided {
		out.Every = true
		return out
	}
	out.Muxes, out.Leaving = p.Muxes, p.Leaving
	if problem, short := problems[key]; short {
		out.Missing = because(problem)
	}
	return out
}
