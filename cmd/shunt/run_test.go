package main

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// TestShortFilesLose checks that a service of a truncated file loses parts of the complete one.
// Additions and changes are no loss.
func TestShortFilesLose(t *testing.T) {
	whole := func() *lb.Service {
		backend := func(dip string) lb.Backend {
			return lb.Backend{DIPs: []netip.Addr{netip.MustParseAddr(dip)}, Port: 8080, Host: netip.MustParseAddr("10.20.1.1"), Weight: 2}
		}
		return &lb.Service{
			Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:f::10")},
			Endpoints: []lb.Endpoint{
				{Protocol: lb.TCP, Port: 80, Backends: []lb.Backend{backend("10.20.1.11"), backend("10.20.1.12")}},
				{Protocol: lb.TCP, Port: 81, Backends: []lb.Backend{backend("10.20.1.11")}, Affinity: lb.AffinityHash},
			},
		}
	}
	for name, c := range map[string]struct {
		change func(s *lb.Service)
		lost   bool
	}{
		"nothing":            {func(*lb.Service) {}, false},
		"a weight":           {func(s *lb.Service) { s.Endpoints[0].Backends[0].Weight = 7 }, false},
		"a further backend":  {func(s *lb.Service) { s.Endpoints[1].Backends = s.Endpoints[0].Backends }, false},
		"a VIP less":         {func(s *lb.Service) { s.VIPs = s.VIPs[:1] }, true},
		"a backend less":     {func(s *lb.Service) { s.Endpoints[0].Backends = s.Endpoints[0].Backends[:1] }, true},
		"an endpoint less":   {func(s *lb.Service) { s.Endpoints = s.Endpoints[:1] }, true},
		"a backend's port":   {func(s *lb.Service) { s.Endpoints[1].Backends[0].Port = 0 }, true},
		"an option less":     {func(s *lb.Service) { s.Endpoints[1].Affinity = "" }, true},
		"one more, one less": {func(s *lb.Service) { s.Endpoints[1].Backends, s.VIPs = s.Endpoints[0].Backends, s.VIPs[:1] }, true},
	} {
		after := whole()
		c.change(after)
		before, now := convert.ToObject(whole()), convert.ToObject(after)
		before.Revision = 7
		if got := loses(before.ProtoReflect(), now.ProtoReflect()); got != c.lost {
			t.Errorf("%s: lost %v, want %v", name, got, c.lost)
		}
	}
}
