package lb_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// overlap is the naive oracle: both endpoints match the same packets and neither is narrower.
func overlap(a, b *lb.Endpoint) bool {
	if a.Protocol != b.Protocol {
		return false
	}
	kind := func(e *lb.Endpoint) int {
		switch {
		case e.PortEnd == 0:
			return 0
		case e.Port > 0:
			return 1
		}
		return 2
	}
	if kind(a) != kind(b) {
		return false
	}
	holds := func(e *lb.Endpoint, port int) bool {
		return port == int(e.Port) || port > int(e.Port) && port <= int(e.PortEnd)
	}
	for port := range 1 << 16 {
		if holds(a, port) && holds(b, port) {
			return true
		}
	}
	return false
}

// TestOverlapsAreFound: for services with and without common VIPs, the state is refused exactly if
// two endpoints of one VIP overlap, or two services have one VIP.
func TestOverlapsAreFound(t *testing.T) {
	ports := rapid.Custom(func(t *rapid.T) [2]uint16 {
		low := rapid.Uint16Range(1, 12).Draw(t, "low")
		return rapid.SampledFrom([][2]uint16{{low, 0}, {low, low + 1}, {low, low + 5}, {0, lb.AllPorts}}).Draw(t, "ports")
	})
	rapid.Check(t, func(t *rapid.T) {
		objects := []lb.Object{validNetwork()}
		var services []*lb.Service
		for i := range rapid.IntRange(1, 3).Draw(t, "services") {
			s := &lb.Service{Name: string(rune('a' + i)), VIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, rapid.Byte().Draw(t, "vip") % 3})}}
			for range rapid.IntRange(1, 4).Draw(t, "endpoints") {
				e := lb.Endpoint{Protocol: rapid.SampledFrom([]lb.Protocol{lb.TCP, lb.UDP, lb.AnyProtocol}).Draw(t, "protocol")}
				e.Backends = []lb.Backend{{DIPs: []netip.Addr{addr("10.20.1.11")}, Host: addr("10.20.1.1"), Weight: 1}}
				if e.Protocol != lb.AnyProtocol {
					p := ports.Draw(t, "ports")
					e.Port, e.PortEnd = p[0], p[1]
				}
				e.Health.Checks = []lb.Check{{Port: 80}}
				s.Endpoints = append(s.Endpoints, e)
			}
			if s.VIPs[0].As4()[3] == 0 {
				s.VIPs[0] = addr("203.0.113.9")
			}
			lb.SetDefaults(s)
			objects, services = append(objects, s), append(services, s)
		}
		wrong := false
		for i, s := range services {
			for k := range s.Endpoints {
				for j := range k {
					wrong = wrong || overlap(&s.Endpoints[k], &s.Endpoints[j])
				}
			}
			for _, o := range services[:i] {
				wrong = wrong || o.VIPs[0] == s.VIPs[0]
			}
		}
		found := append(lb.Validate(objects...), lb.ValidateState(objects)...)
		for _, v := range found {
			if !strings.Contains(v.Allowed, "must differ from endpoints[") && !strings.Contains(v.Allowed, "must not overlap the range of endpoints[") && !strings.Contains(v.Allowed, "must belong to one service") {
				t.Fatalf("other fault: %s", v)
			}
		}
		if wrong != (len(found) > 0) {
			t.Fatalf("wrong is %v, found %v", wrong, texts(found))
		}
	})
}

// TestSharedOuters compares each backend with each other one.
func TestSharedOuters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &lb.Service{Name: "web", VIPs: []netip.Addr{addr("203.0.113.10"), addr("2001:db8:f::10")}}
		e := lb.Endpoint{Protocol: lb.TCP, Port: 80, Encap: lb.EncapIPIP}
		type member struct {
			v4    bool
			outer netip.Addr
		}
		seen := map[member]bool{}
		shared := 0
		for i := range rapid.IntRange(1, 40).Draw(t, "backends") {
			b := lb.Backend{
				DIPs: []netip.Addr{v4(1, rapid.IntRange(0, 60).Draw(t, "dip")), v6(1, rapid.IntRange(0, 60).Draw(t, "dip6"))}, Port: uint16(i + 1), Weight: 1,
				Host: rapid.SampledFrom([]netip.Addr{v4(2, i), v6(2, i), v4(3, 1), v6(3, 1)}).Draw(t, "host"),
			}
			e.Backends = append(e.Backends, b)
			for _, dip := range b.DIPs {
				m := member{dip.Is4(), lb.Outer(dip, b.Host)}
				if seen[m] {
					shared++
				}
				seen[m] = true
			}
		}
		s.Endpoints = []lb.Endpoint{e}
		lb.SetDefaults(s)
		if found := lb.Validate(s); len(found) != min(shared, 100) {
			t.Fatalf("%d faults, want %d: %s", len(found), shared, texts(found))
		}
		s.Endpoints[0].Encap = lb.EncapGUE
		if found := lb.Validate(s); len(found) != 0 {
			t.Fatalf("with gue: %s", texts(found))
		}
	})
}

// BenchmarkValidateState checks whole states of services with 10 backends each, and one changed
// service in them.
func BenchmarkValidateState(b *testing.B) {
	for _, count := range []int{1, 1000, 5000, 20000} {
		objects := manyServices(count)
		b.Run(fmt.Sprintf("all/%d", count), func(b *testing.B) {
			for b.Loop() {
				if faults := lb.ValidateState(objects); len(faults) > 0 {
					b.Fatal(faults[0])
				}
			}
		})
		b.Run(fmt.Sprintf("one/%d", count), func(b *testing.B) {
			state := lb.NewState()
			for _, o := range objects {
				state.Apply(lb.PutEdit(o))
			}
			for b.Loop() {
				if faults := state.Check(lb.PutEdit(objects[1])); len(faults) > 0 {
					b.Fatal(faults[0])
				}
			}
		})
	}
}

// manyServices returns a Network and services with 10 backends each.
func manyServices(count int) []lb.Object {
	n := validNetwork()
	n.VIPs = []netip.Prefix{prefix("172.16.0.0/12")}
	objects := []lb.Object{n}
	for i := range count {
		s := &lb.Service{Name: fmt.Sprintf("s%d", i), VIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})}}
		e := lb.Endpoint{Protocol: lb.TCP, Port: 80}
		for k := range 10 {
			e.Backends = append(e.Backends, lb.Backend{DIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(k), byte(i >> 8), byte(i)})}, Port: 80, Host: addr("10.200.1.1"), Weight: 1})
		}
		s.Endpoints = []lb.Endpoint{e}
		lb.SetDefaults(s)
		objects = append(objects, s)
	}
	return objects
}
