package dataplane

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// idleService has an endpoint for each protocol, with times of its own, and one (port 81) without.
const idleService = `
kind: Service
name: web
vip: 203.0.113.10
endpoints:
- protocol: tcp
  port: 80
  hostIdle: {established: 3h, opening: 20s, closing: 40s}
  backends: [{dip: 10.20.1.11, port: 8080, host: 10.20.1.1}]
- protocol: tcp
  port: 81
  backends: [{dip: 10.20.1.11, port: 8081, host: 10.20.1.1}]
- protocol: udp
  port: 53
  hostIdle: {udp: 10s}
  backends: [{dip: 10.20.1.11, port: 5353, host: 10.20.1.1}]
- protocol: any
  encap: gue
  hostIdle: {established: 30m, udp: 90s, other: 45m}
  backends: [{dip: 10.20.1.11, host: 10.20.1.1}]
  health: {port: 80}
`

// bindingsOf are the bindings that hosts get of a service: through the API and through their plan, as bytes.
func bindingsOf(t *testing.T, text string) []plan.Binding {
	t.Helper()
	objects, err := lb.Parse(strings.NewReader(text), "test")
	must(t, err)
	wire, err := proto.Marshal(convert.ToObject(objects[0]))
	must(t, err)
	var said apiv1.Object
	must(t, proto.Unmarshal(wire, &said))
	object, faults := convert.FromObject(&said, 0)
	if faults = append(faults, lb.Validate(object)...); len(faults) > 0 {
		t.Fatal(faults)
	}
	s := object.(*lb.Service)
	var items []*apiv1.PlanItem
	plan.EachEndpoint(s, func(key lb.EndpointKey, ep *lb.Endpoint) {
		st := plan.EndpointState{Key: key}
		for i, w := range plan.WantedMembers(ep, key.VIP) {
			st.Members = append(st.Members, plan.MemberState{ID: uint16(i), Backend: w.Backend, Weight: w.Weight})
		}
		for _, hb := range plan.MakeBindings(s, ep, &st, lb.EncapIPIP) {
			wire, err := proto.Marshal(convert.BindingItem(&hb.Binding))
			must(t, err)
			item := &apiv1.PlanItem{}
			must(t, proto.Unmarshal(wire, item))
			items = append(items, item)
		}
	})
	p, err := convert.FromItems(items)
	must(t, err)
	return p.Bindings
}

// TestHostIdleOfAnEndpoint: what a service says of idle times reaches its hosts, and each flow ends by the time of its own endpoint and
// class, neither earlier than a 64th and some ticks before it nor later.
func TestHostIdleOfAnEndpoint(t *testing.T) {
	e := newClockEnv(t)
	e.apply(bindingsOf(t, idleService)...)
	const member = 0
	client := uint16(2000)
	in := func(protocol lb.Protocol, port uint16, p packet) {
		p.protocol, p.src, p.dst, p.sport, p.dport = protocol, client4, vip4, client, port
		f := tunnel(t, source4, dip4, p.bytes(t))
		if port != 80 && port != 81 && port != 53 {
			f = gueTunnel(t, source4, dip4, member, p.bytes(t))
		}
		before := e.reasons(nil)
		if v, _ := e.run(e.host.objects.HostIn, f); v != verdictRedirect {
			t.Fatalf("%s port %d: verdict %d, reasons %v", protocol, port, v, e.reasons(before))
		}
	}
	out := func(protocol lb.Protocol, port uint16, p packet) {
		p.protocol, p.src, p.dst, p.sport, p.dport = protocol, dip4, client4, port, client
		e.run(e.host.objects.HostOut, frame(p.bytes(t)))
	}
	opening := func(port uint16) func() { return func() { in(lb.TCP, port, packet{syn: true}) } }
	established := func(port, dport uint16) func() {
		return func() { in(lb.TCP, port, packet{ack: true}); out(lb.TCP, dport, packet{ack: true}) }
	}
	closing := func(port, dport uint16) func() {
		return func() { in(lb.TCP, port, packet{ack: true}); out(lb.TCP, dport, packet{rst: true}) }
	}
	datagram := func(protocol lb.Protocol, port uint16) func() {
		return func() { in(protocol, port, packet{payload: "question"}) }
	}
	usual := lb.DefaultHostIdle
	for _, c := range []struct {
		name string
		do   func()
		idle time.Duration
	}{
		{"tcp established", established(80, 8080), 3 * time.Hour},
		{"tcp opening", opening(80), 20 * time.Second},
		{"tcp closing", closing(80, 8080), 40 * time.Second},
		{"tcp established by default", established(81, 8081), usual.Established},
		{"tcp opening by default", opening(81), usual.Opening},
		{"tcp closing by default", closing(81, 8081), usual.Closing},
		{"udp", datagram(lb.UDP, 53), 10 * time.Second},
		{"any: tcp established", established(90, 90), 30 * time.Minute},
		{"any: tcp opening by default", opening(90), usual.Opening},
		{"any: udp", datagram(lb.UDP, 54), 90 * time.Second},
		{"any: GRE", datagram(lb.Protocol(47), 55), 45 * time.Minute},
	} {
		const tick = time.Second << 30 / 1e9
		client++
		c.do()
		early := c.idle/64 + 2*tick
		e.later(c.idle - early)
		e.sweepAll()
		if n := e.tags(); n != 1 {
			t.Errorf("%s: %d flows %s before %s are over, want 1", c.name, n, early, c.idle)
		}
		e.later(early + 3*tick)
		e.sweepAll()
		if n := e.tags(); n != 0 {
			t.Errorf("%s: %d flows after %s, want none", c.name, n, c.idle)
		}
	}

	// A change of the times counts from a flow's next packet.
	client++
	opening(80)()
	e.apply(bindingsOf(t, strings.ReplaceAll(idleService, "opening: 20s", "opening: 10m"))...)
	opening(80)()
	e.later(9 * time.Minute)
	e.sweepAll()
	if n := e.tags(); n != 1 {
		t.Errorf("%d flows, want the one whose time was made longer", n)
	}
}
