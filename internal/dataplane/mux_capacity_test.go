package dataplane

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// capacityMux has the largest tables but for rings and flows, which these tests do not fill.
func capacityMux(t *testing.T) *Mux {
	m, err := OpenMux(MuxOptions{Address: muxSelf, DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil }, Limits: MuxLimits{
		Endpoints: uint32(muxLimitLIMIT_ENDPOINTS), Members: uint32(muxLimitLIMIT_MEMBERS),
		Backends: uint32(muxLimitLIMIT_BACKENDS), RingWords: 1 << 21, Flows: uint32(muxLimitLIMIT_FLOW_ENTRIES_MIN),
	}})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// numbered is the address of backend i.
func numbered(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// TestEndpointOf65535Members: a member id has 16 bits, and all of them can be used.
func TestEndpointOf65535Members(t *testing.T) {
	const n = 65535
	m := capacityMux(t)
	e := MuxEndpoint{Key: lb.EndpointKey{VIP: muxVIP4, Protocol: lb.TCP, Port: 80}, RingCode: ring.CodeMax}
	members := make([]ring.Member, n)
	for i := range members {
		e.Members = append(e.Members, MuxMember{ID: uint16(i), Outer: numbered(i), MTU: 1500, Choosable: true, Alive: true})
		members[i] = ring.Member{ID: uint16(i), DIP: numbered(i), Port: 80, Weight: 1}
	}
	e.Ring = ring.Build(e.RingCode, members)
	must(t, m.Apply(MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{e}}))
	for port := range uint16(50) {
		got, err := m.Trace(Packet{Client: muxClient4, VIP: muxVIP4, Protocol: lb.TCP, ClientPort: port, Port: 80})
		if err != nil || got.Outer != numbered(int(got.Member)) {
			t.Fatalf("port %d: %+v, %v", port, got, err)
		}
	}
}

// TestServices64Ki: 65,536 services of 16 backends each, 1,048,576 members of as many backends' records in all.
func TestServices64Ki(t *testing.T) {
	const services, each = 1 << 16, 16
	m := capacityMux(t)
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: make([]MuxEndpoint, services)}
	vip := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}) }
	slots := make([]uint16, 1<<6)
	for i := range slots {
		slots[i] = uint16(i % each)
	}
	for i := range s.Endpoints {
		e := MuxEndpoint{Key: lb.EndpointKey{VIP: vip(i), Protocol: lb.TCP, Port: 80}, RingCode: 6, Ring: slots}
		e.Members = make([]MuxMember, each)
		for j := range e.Members {
			e.Members[j] = MuxMember{ID: uint16(j), Outer: numbered(i*each + j), MTU: 1500, Choosable: true, Alive: true}
		}
		s.Endpoints[i] = e
	}
	must(t, m.Apply(s))
	for i := 0; i < services; i += 997 {
		got, err := m.Trace(Packet{Client: muxClient4, VIP: vip(i), Protocol: lb.TCP, ClientPort: 7, Port: 80})
		if err != nil || got.Outer != numbered(i*each+int(got.Member)) {
			t.Fatalf("service %d: %+v, %v", i, got, err)
		}
	}
	for _, p := range m.Pressure() {
		if want := map[string]uint64{"endpoints": 2 * services, "members": services * each, "backends": services * each}[p.Name]; want != 0 && p.Used != want {
			t.Errorf("%s: %d used, wanted %d", p.Name, p.Used, want)
		}
	}
}
