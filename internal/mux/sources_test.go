package mux

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestSharedSources: services that use a policy's list share one list in the tables, which is
// hashed once; others keep their own.
func TestSharedSources(t *testing.T) {
	list := func(third byte) lb.Sources {
		return lb.Sources{Deny: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, third, 0}), 24)}}
	}
	service := func(name string, vip byte, of string, own lb.Sources) plan.Service {
		return plan.Service{Name: name, VIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, vip})}, SourcesOf: of, Sources: own}
	}
	p := plan.Plan{
		Services: []plan.Service{service("a", 1, "gold", lb.Sources{}), service("b", 2, "", list(7)), service("c", 3, "gold", lb.Sources{}), service("gold", 4, "", lb.Sources{})},
		Sources:  []plan.Sources{{Policy: "gold", Sources: list(2)}},
	}
	for _, s := range p.Services {
		p.Endpoints = append(p.Endpoints, plan.Endpoint{Key: lb.EndpointKey{VIP: s.VIPs[0], Protocol: lb.TCP, Port: 80}})
	}
	planner := NewPlanner()
	lists := func(p plan.Plan) (out [4]*dataplane.SourceList) {
		for i, v := range planner.State(p).VIPs {
			out[i] = v.Sources
		}
		return out
	}
	got := lists(p)
	if got[0] == nil || got[0] != got[2] || got[0].Deny[0] != list(2).Deny[0] {
		t.Errorf("services with policy gold have %v and %v", got[0], got[2])
	}
	if got[1] == nil || got[1].Deny[0] != list(7).Deny[0] || got[3] != nil {
		t.Errorf("services without a policy have %v and %v", got[1], got[3])
	}
	if again := lists(p); again != got {
		t.Error("lists that did not change were read again")
	}
	p.Sources = []plan.Sources{{Policy: "gold", Sources: list(3)}}
	next := lists(p)
	if next[0] == got[0] || next[0] != next[2] || next[0].Digest == got[0].Digest || next[1] != got[1] {
		t.Errorf("after a change of the policy: %v", next)
	}
	planner.sources.prune(plan.Plan{Services: p.Services[1:2]})
	if len(planner.sources) != 1 || planner.sources["service/b"] == nil {
		t.Errorf("after the policy went: %v", planner.sources)
	}
}
