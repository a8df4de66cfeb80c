package dataplane

import (
	"bytes"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// handshakes are those of the one binding of an endpoint's port.
func (e *hostEnv) handshakes(port uint16) BindingHandshakes {
	e.t.Helper()
	all, err := e.host.Handshakes(func(b *plan.Binding) bool { return b.Key.Port == port })
	must(e.t, err)
	if len(all) != 1 {
		e.t.Fatalf("handshakes of %d bindings, want 1: %+v", len(all), all)
	}
	return all[0]
}

// TestHostHandshakes: SYNs of clients and what servers answer to them are counted for the binding that they came by, and nothing
// else is.
func TestHostHandshakes(t *testing.T) {
	for _, family := range []struct{ client, vip, dip, source string }{{client4, vip4, dip4, source4}, {client6, vip6, dip6, source6}} {
		e := newHostEnv(t)
		b := bind(lb.TCP, family.vip, family.dip, family.dip, true)
		e.apply(b)
		in := func(p packet) {
			p.protocol, p.src, p.dst, p.dport = lb.TCP, family.client, family.vip, 80
			e.run(e.host.objects.HostIn, tunnel(t, family.source, family.dip, p.bytes(t)))
		}
		out := func(p packet) {
			p.protocol, p.src, p.dst, p.sport = lb.TCP, family.dip, family.client, 8080
			want := p
			want.src, want.sport = family.vip, 80
			if _, got := e.run(e.host.objects.HostOut, frame(p.bytes(t))); !bytes.Equal(got, frame(want.bytes(t))) {
				t.Fatalf("%+v did not leave as %+v", p, want)
			}
		}
		steps := []struct {
			name                     string
			do                       func()
			asked, accepted, refused uint64
		}{
			{"nothing", func() {}, 0, 0, 0},
			{"SYN", func() { in(packet{sport: 40001, syn: true}) }, 1, 0, 0},
			{"the same again", func() { in(packet{sport: 40001, syn: true}) }, 2, 0, 0},
			{"SYN-ACK", func() { out(packet{dport: 40001, syn: true, ack: true}) }, 2, 1, 0},
			{"data both ways", func() {
				in(packet{sport: 40001, ack: true, payload: "GET"})
				out(packet{dport: 40001, ack: true, payload: "200"})
			}, 2, 1, 0},
			{"a reset of what was open", func() { out(packet{dport: 40001, rst: true, seq: 0x55667788, ack: true}) }, 2, 1, 0},
			{"another SYN", func() { in(packet{sport: 40002, syn: true}) }, 3, 1, 0},
			{"refusal", func() { out(packet{dport: 40002, rst: true, ack: true}) }, 3, 1, 1},
			{"a client's reset", func() { in(packet{sport: 40002, rst: true}) }, 3, 1, 1},
		}
		for _, s := range steps {
			s.do()
			if got := e.handshakes(80); got.Asked != s.asked || got.Accepted != s.accepted || got.Refused != s.refused {
				t.Errorf("after %s: %d asked, %d accepted, %d refused; want %d, %d, %d", s.name, got.Asked, got.Accepted, got.Refused, s.asked, s.accepted, s.refused)
			}
		}
		// A new agent goes on, a new binding begins at nothing.
		e.open()
		e.apply(b)
		if got := e.handshakes(80); got.Asked != 3 {
			t.Errorf("a new agent knows of %d, want 3", got.Asked)
		}
		e.apply()
		e.apply(b)
		if got := e.handshakes(80); got.Asked != 0 || got.Accepted != 0 || got.Refused != 0 {
			t.Errorf("a new binding begins with %+v", got)
		}
		// Answers of a flow that began by the former one count for the one that its packets come by now.
		in(packet{sport: 40001, ack: true})
		out(packet{dport: 40001, rst: true, ack: true})
		if got := e.handshakes(80); got.Refused != 1 {
			t.Errorf("%d refused, want 1", got.Refused)
		}
	}
}

// TestHostHandshakesOfRewritten: servers that own the VIP answer without us.
func TestHostHandshakesOfRewritten(t *testing.T) {
	e := newHostEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, false))
	all, err := e.host.Handshakes(func(*plan.Binding) bool { return true })
	if err != nil || len(all) != 0 {
		t.Errorf("got %+v, %v", all, err)
	}
}

// TestHostAsksOfDatagrams: new flows of UDP are asks of their binding and the first answer to each is accepted, but while a binding for all protocols is there,
// whose asks are those of TCP alone.
func TestHostAsksOfDatagrams(t *testing.T) {
	for _, family := range []struct{ client, vip, dip, source string }{{client4, vip4, dip4, source4}, {client6, vip6, dip6, source6}} {
		e := newHostEnv(t)
		b := bind(lb.UDP, family.vip, family.dip, family.dip, true)
		e.apply(b)
		ask := func(port uint16) {
			p := packet{protocol: lb.UDP, src: family.client, dst: family.vip, sport: port, dport: 53, payload: "q"}
			e.run(e.host.objects.HostIn, tunnel(t, family.source, family.dip, p.bytes(t)))
		}
		answer := func(port uint16) {
			p := packet{protocol: lb.UDP, src: family.dip, dst: family.client, sport: 5353, dport: port, payload: "a"}
			e.run(e.host.objects.HostOut, frame(p.bytes(t)))
		}
		expect := func(when string, asked, accepted uint64) {
			t.Helper()
			if got := e.handshakes(53); got.Asked != asked || got.Accepted != accepted || got.Refused != 0 {
				t.Errorf("%s: %+v, want %d asked, %d accepted", when, got, asked, accepted)
			}
		}
		ask(1)
		ask(1)
		ask(2)
		expect("two flows", 2, 0)
		answer(1)
		answer(1)
		ask(1)
		expect("one is answered", 2, 1)
		answer(9)
		expect("of no flow", 2, 1)
		every := gue(7, bind(lb.AnyProtocol, family.vip, family.dip, family.dip, true))
		every.Key.Port, every.DIPPort = 0, 0
		e.apply(b, every)
		ask(3)
		answer(3)
		expect("with a binding for all protocols", 2, 1)
	}
}
