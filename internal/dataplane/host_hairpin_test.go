package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
)

// Clients on the machine of the servers: VMs that are none.
const (
	near4, near6     = "10.20.1.21", "2001:db8:20:1::21" // behind a device of its own
	beside4, beside6 = "10.20.1.22", "2001:db8:20:1::22" // behind the device of the server
)

// newHairpinEnv is a quiet environment with clients on the machine.
func newHairpinEnv(t *testing.T) *hostEnv {
	e := newHostEnv(t).quiet()
	for addr, dev := range map[string]string{near4: "nm0", near6: "nm0", beside4: "vm0", beside6: "vm0"} {
		e.route(addr, dev)
	}
	return e
}

// turned is the frame of an answer that was turned back: to the uplink's own address.
func turned(ip []byte) []byte {
	f := frame(ip)
	copy(f, macA)
	return f
}

// TestHostHairpin: the server of a client on its machine sees the VIP, and its answers are turned back to the client; whoever the client is, and
// whether the server is behind the host or is the host.
func TestHostHairpin(t *testing.T) {
	e := newHairpinEnv(t)
	host4vip, host6vip := "203.0.113.11", "2001:db8:f::11"
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true),
		bind(lb.TCP, vip6, dip6, dip6, true), bind(lb.UDP, vip6, dip6, dip6, true),
		bind(lb.TCP, host4vip, host4, host4, true), bind(lb.UDP, host4vip, host4, host4, true),
		bind(lb.TCP, host6vip, host6, host6, true), bind(lb.UDP, host6vip, host6, host6, true))
	port := uint16(40000)
	for _, way := range []struct {
		source, vip, dip string
		verdict          int32
		clients          []string
	}{
		{source4, vip4, dip4, verdictRedirect, []string{dip4, host4, near4, beside4}},
		{source6, vip6, dip6, verdictRedirect, []string{dip6, host6, near6, beside6}},
		{source4, host4vip, host4, verdictPass, []string{host4, dip4, near4}},
		{source6, host6vip, host6, verdictPass, []string{host6, dip6, near6}},
	} {
		for _, client := range way.clients {
			for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP} {
				port++
				vport, dport := uint16(80), uint16(8080)
				if protocol == lb.UDP {
					vport, dport = 53, 5353
				}
				name := fmt.Sprintf("%s from %s to %s at %s", protocol, client, way.vip, way.dip)
				ask := packet{protocol: protocol, src: client, dst: way.vip, sport: port, dport: vport, ack: true, payload: "odd"}
				got := packet{protocol: protocol, src: way.vip, dst: way.dip, sport: port, dport: dport, ack: true, payload: "odd"}
				answer := packet{protocol: protocol, src: way.dip, dst: way.vip, sport: dport, dport: port, ack: true, payload: "answer"}
				back := packet{protocol: protocol, src: way.vip, dst: client, sport: vport, dport: port, ack: true, payload: "answer"}
				for range 2 {
					e.expect(name, tunnel(t, way.source, way.dip, ask.bytes(t)), way.verdict, frame(got.bytes(t)), "in_delivered", "client_here")
					e.answered(name, frame(answer.bytes(t)), verdictRedirect, turned(back.bytes(t)), "out_returned", "client_here")
				}
			}
		}
	}

	syn := packet{protocol: lb.TCP, src: dip4, dst: vip4, sport: 50001, dport: 80, syn: true, options: mssOption(1, 1460)}
	got := packet{protocol: lb.TCP, src: vip4, dst: dip4, sport: 50001, dport: 8080, syn: true, options: mssOption(1, 1440)}
	e.expect("SYN", tunnel(t, source4, dip4, syn.bytes(t)), verdictRedirect, frame(got.bytes(t)), "in_delivered", "client_here", "mss_clamped")
	synAck := packet{protocol: lb.TCP, src: dip4, dst: vip4, sport: 8080, dport: 50001, syn: true, ack: true, options: mssOption(0, 1460)}
	back := packet{protocol: lb.TCP, src: vip4, dst: dip4, sport: 80, dport: 50001, syn: true, ack: true, options: mssOption(0, 1440)}
	e.answered("SYN-ACK", frame(synAck.bytes(t)), verdictRedirect, turned(back.bytes(t)), "out_returned", "client_here", "mss_clamped")
	quiet := packet{protocol: lb.UDP, src: dip4, dst: vip4, sport: 50001, dport: 53, payload: "?", noSum: true}
	quietGot := packet{protocol: lb.UDP, src: vip4, dst: dip4, sport: 50001, dport: 5353, payload: "?", noSum: true}
	e.expect("without a checksum", tunnel(t, source4, dip4, quiet.bytes(t)), verdictRedirect, frame(quietGot.bytes(t)), "in_delivered", "client_here")
}

// TestHostHairpinPorts: clients on one machine share the ports of the VIP towards a server. Who comes second with a port gets another, and so does
// one whose port is the VIP's own: the server's answer would look like what the server itself says to the VIP.
func TestHostHairpinPorts(t *testing.T) {
	e := newHairpinEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true))
	clients := []string{dip4, near4, beside4, host4}
	seen := map[uint16]string{}
	send := func(protocol lb.Protocol, client string, port, vport, dport uint16) uint16 {
		t.Helper()
		ask := packet{protocol: protocol, src: client, dst: vip4, sport: port, dport: vport, ack: true, payload: "x"}
		verdict, out := e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, ask.bytes(t)))
		server := binary.BigEndian.Uint16(out[34:])
		got := packet{protocol: protocol, src: vip4, dst: dip4, sport: server, dport: dport, ack: true, payload: "x"}
		if want := frame(got.bytes(t)); verdict != verdictRedirect || string(out) != string(want) {
			t.Fatalf("%s:%d: verdict %d, frame\n% x, want\n% x", client, port, verdict, out, want)
		}
		answer := packet{protocol: protocol, src: dip4, dst: vip4, sport: dport, dport: server, ack: true, payload: "y"}
		back := packet{protocol: protocol, src: vip4, dst: client, sport: vport, dport: port, ack: true, payload: "y"}
		verdict, out = e.run(e.host.objects.HostOut, frame(answer.bytes(t)))
		if want := turned(back.bytes(t)); verdict != verdictRedirect || string(out) != string(want) {
			t.Fatalf("%s:%d: answer has verdict %d, frame\n% x, want\n% x", client, port, verdict, out, want)
		}
		return server
	}
	for range 3 {
		for _, client := range clients {
			server := send(lb.TCP, client, 40001, 80, 8080)
			if who := seen[server]; who != "" && who != client {
				t.Fatalf("%s and %s both have port %d", client, who, server)
			}
			seen[server] = client
		}
	}
	if len(seen) != len(clients) || seen[40001] != dip4 {
		t.Errorf("ports %v, want one for each client, and the first its own", seen)
	}
	for range 2 {
		if server := send(lb.UDP, dip4, 53, 53, 5353); server == 53 {
			t.Error("an answer that looks like a question")
		}
	}
	question := packet{protocol: lb.UDP, src: dip4, dst: vip4, sport: 5353, dport: 53, payload: "of the server itself"}
	e.answered("what the server asks", frame(question.bytes(t)), verdictNext, frame(question.bytes(t)), "pass_not_ours")
}

// serveFrom tells that host_serve hears what these addresses send by a device.
func (e *hostEnv) serveFrom(device string, addresses ...string) {
	e.t.Helper()
	var s HostServers
	for _, a := range addresses {
		s.Senders = append(s.Senders, HostSender{Ifindex: e.device(device), Address: netip.MustParseAddr(a)})
	}
	_, err := e.host.Serve(s)
	must(e.t, err)
}

// served gives a frame to host_serve as one that came by the server's device.
func (e *hostEnv) served(name string, in []byte, verdict int32, out []byte, reasons ...string) {
	e.t.Helper()
	before := e.reasons(nil)
	v, got := e.runOn(e.host.objects.HostServe, e.device("vm0"), in)
	if r := e.reasons(before); v != verdict || !maps.Equal(r, one(reasons...)) {
		e.t.Errorf("%s: verdict %d, reasons %v, want %d, %v", name, v, r, verdict, reasons)
	}
	if !bytes.Equal(got, out) {
		e.t.Errorf("%s: frame\n% x, want\n% x", name, got, out)
	}
}

// TestHostBeside: where answers pass the device of their server on their way to a client behind another device, the server sees the client's own
// address, and they are translated there. All others on the machine are known by the VIP, and so are those of flows that began before.
func TestHostBeside(t *testing.T) {
	e := newHairpinEnv(t)
	second := "203.0.113.77"
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true), bind(lb.TCP, second, dip4, dip4, true),
		bind(lb.TCP, vip6, dip6, dip6, true), bind(lb.UDP, vip6, dip6, dip6, true), bind(lb.TCP, "203.0.113.11", host4, host4, true))
	before := packet{protocol: lb.TCP, src: near4, dst: vip4, sport: 39999, dport: 80, ack: true}
	e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, before.bytes(t)))
	e.serveFrom("vm0", dip4, dip6)
	seen := packet{protocol: lb.TCP, src: vip4, dst: dip4, sport: 39999, dport: 8080, ack: true}
	e.expect("began before", tunnel(t, source4, dip4, before.bytes(t)), verdictRedirect, frame(seen.bytes(t)), "in_delivered", "client_here")

	for _, way := range []struct{ source, client, vip, dip string }{{source4, near4, vip4, dip4}, {source6, near6, vip6, dip6}} {
		for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP} {
			vport, dport := uint16(80), uint16(8080)
			if protocol == lb.UDP {
				vport, dport = 53, 5353
			}
			name := fmt.Sprintf("%s from %s", protocol, way.client)
			ask := packet{protocol: protocol, src: way.client, dst: way.vip, sport: 40001, dport: vport, syn: true, payload: "odd"}
			got := packet{protocol: protocol, src: way.client, dst: way.dip, sport: 40001, dport: dport, syn: true, payload: "odd"}
			answer := packet{protocol: protocol, src: way.dip, dst: way.client, sport: dport, dport: 40001, ack: true, payload: "answer"}
			back := packet{protocol: protocol, src: way.vip, dst: way.client, sport: vport, dport: 40001, ack: true, payload: "answer"}
			for range 2 { // a SYN begins it anew
				e.expect(name, tunnel(t, way.source, way.dip, ask.bytes(t)), verdictRedirect, frame(got.bytes(t)), "in_delivered")
				e.served(name, frame(answer.bytes(t)), verdictRedirect, frame(back.bytes(t)), "out_returned")
			}
			e.answered(name+", the client moved away", frame(answer.bytes(t)), verdictNext, frame(back.bytes(t)), "out_returned")
		}
	}
	collides := packet{protocol: lb.TCP, src: near4, dst: second, sport: 40001, dport: 80, ack: true}
	_, out := e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, collides.bytes(t)))
	answer := packet{protocol: lb.TCP, src: dip4, dst: near4, sport: 8080, dport: binary.BigEndian.Uint16(out[34:]), ack: true}
	back := packet{protocol: lb.TCP, src: second, dst: near4, sport: 80, dport: 40001, ack: true}
	if answer.dport == 40001 {
		t.Error("two flows have one port")
	}
	e.served("another port", frame(answer.bytes(t)), verdictRedirect, frame(back.bytes(t)), "out_returned")

	for _, client := range []string{dip4, beside4, host4} {
		ask := packet{protocol: lb.TCP, src: client, dst: second, sport: 41001, dport: 80, ack: true}
		_, out := e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, ask.bytes(t)))
		port := binary.BigEndian.Uint16(out[34:])
		got := packet{protocol: lb.TCP, src: second, dst: dip4, sport: port, dport: 8080, ack: true}
		if want := frame(got.bytes(t)); !bytes.Equal(out, want) {
			t.Errorf("%s: frame\n% x, want\n% x", client, out, want)
		}
		answer := frame(packet{protocol: lb.TCP, src: dip4, dst: second, sport: 8080, dport: port, ack: true}.bytes(t))
		e.served(client, answer, verdictNext, answer)
	}
	onHost := packet{protocol: lb.TCP, src: near4, dst: "203.0.113.11", sport: 40001, dport: 80, ack: true}
	seen = packet{protocol: lb.TCP, src: "203.0.113.11", dst: host4, sport: 40001, dport: 8080, ack: true}
	e.expect("a server on the host itself", tunnel(t, source4, host4, onHost.bytes(t)), verdictPass, frame(seen.bytes(t)), "in_delivered", "client_here")
	ask := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40001, dport: 80, ack: true}
	e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, ask.bytes(t)))
	outside := frame(packet{protocol: lb.TCP, src: dip4, dst: client4, sport: 8080, dport: 40001, ack: true}.bytes(t))
	e.served("to outside", outside, verdictNext, outside)
}

// TestHostBesideRest: fragments and ICMP errors of such flows, which an agent that starts takes over.
func TestHostBesideRest(t *testing.T) {
	e := newHairpinEnv(t)
	e.apply(bind(lb.UDP, vip4, dip4, dip4, true), bind(lb.UDP, vip6, dip6, dip6, true))
	e.serveFrom("vm0", dip4, dip6)
	text := string(make([]byte, 100)) + "and so on, up to an odd end"
	for _, way := range []struct {
		source, client, vip, dip string
		errors                   []errorKind
	}{{source4, near4, vip4, dip4, errors4}, {source6, near6, vip6, dip6, errors6}} {
		asked := packet{protocol: lb.UDP, src: way.client, dst: way.vip, sport: 40001, dport: 53, payload: text}
		got := packet{protocol: lb.UDP, src: way.client, dst: way.dip, sport: 40001, dport: 5353, payload: text}
		e.run(e.host.objects.HostIn, tunnel(t, way.source, way.dip, asked.bytes(t)))
		e.open()
		e.quiet()
		sent := packet{protocol: lb.UDP, src: way.dip, dst: way.client, sport: 5353, dport: 40001, payload: text}
		left := packet{protocol: lb.UDP, src: way.vip, dst: way.client, sport: 53, dport: 40001, payload: text}
		in, out := cut(sent.bytes(t), 77, 64), cut(left.bytes(t), 77, 64)
		e.served(way.client+" later first", frame(in[1]), verdictNext, frame(in[1]))
		e.served(way.client+" first", frame(in[0]), verdictRedirect, frame(out[0]), "out_returned")
		e.served(way.client+" later", frame(in[1]), verdictRedirect, frame(out[1]), "out_returned", "fragment_followed")
		for _, k := range way.errors {
			for _, n := range quotes {
				name := fmt.Sprintf("%s type %d quote %d", way.client, k.kind, n)
				mine := icmp(t, way.dip, way.client, k.kind, k.code, k.word, quote(got.bytes(t), n))
				want := icmp(t, way.vip, way.client, k.kind, k.code, k.word, quote(asked.bytes(t), n))
				e.served(name, frame(mine), verdictRedirect, frame(want), "out_icmp_returned")
				mine = icmp(t, way.client, way.vip, k.kind, k.code, k.word, quote(left.bytes(t), n))
				want = icmp(t, way.client, way.dip, k.kind, k.code, k.word, quote(sent.bytes(t), n))
				e.expect(name, tunnel(t, way.source, way.dip, mine), verdictRedirect, frame(want), "in_icmp_delivered")
			}
		}
		other := got
		other.dport = 7
		unknown := frame(icmp(t, way.dip, way.client, way.errors[0].kind, 0, 0, other.bytes(t)))
		e.served(way.client+" another's error", unknown, verdictNext, unknown)
	}
}

// TestHostHairpinNot: a client whose way leads out of the uplink is none of this machine, nor is any when the VIP's does not, or when the machine
// forwards nothing: then only a server that is its own client.
func TestHostHairpinNot(t *testing.T) {
	e := newHairpinEnv(t)
	lost := "192.0.2.10"
	e.apply(bind(lb.TCP, vip4, host4, host4, true), bind(lb.TCP, lost, dip4, dip4, true), gue(1, every(bind(lb.TCP, vip4, dip4, dip4, true))))
	ask := func(client, vip string) packet {
		return packet{protocol: lb.TCP, src: client, dst: vip, sport: 40001, dport: 80, ack: true}
	}
	to := func(p packet, src, dip string) []byte {
		p.src, p.dst, p.dport = src, dip, 8080
		return frame(p.bytes(t))
	}
	e.expect("by the uplink", tunnel(t, source4, host4, ask(client4, vip4).bytes(t)), verdictPass, to(ask(client4, vip4), client4, host4), "in_delivered")
	e.expect("no way to the VIP", tunnel(t, source4, dip4, ask(near4, lost).bytes(t)), verdictRedirect, to(ask(near4, lost), near4, dip4), "in_delivered")
	e.expect("without ports", gueTunnel(t, source4, dip4, 1, plain(t, near4, vip4, 136, "0123456789")), verdictDrop, nil, "in_no_port")
	must(t, netdev.SetSysctls(e.namespace, []netdev.Sysctl{{Key: "net/ipv4/ip_forward", Value: "0"}}))
	other := ask(near4, vip4)
	e.expect("forwarding is off", tunnel(t, source4, host4, other.bytes(t)), verdictPass, to(other, near4, host4), "in_delivered")
	own := ask(host4, vip4)
	own.sport = 40002
	e.expect("forwarding is off, itself", tunnel(t, source4, host4, own.bytes(t)), verdictPass, to(own, vip4, host4), "in_delivered", "client_here")
}

// TestHostHairpinFragments: fragments follow their first one, there and back.
func TestHostHairpinFragments(t *testing.T) {
	e := newHairpinEnv(t)
	e.apply(bind(lb.UDP, vip4, dip4, dip4, true), bind(lb.UDP, vip6, dip6, dip6, true))
	text := string(make([]byte, 100)) + "and so on, up to an odd end"
	for _, way := range []struct{ source, vip, dip, client string }{
		{source4, vip4, dip4, dip4}, {source4, vip4, dip4, near4}, {source6, vip6, dip6, dip6}, {source6, vip6, dip6, near6},
	} {
		port := uint16(40001)
		if way.client == near4 || way.client == near6 {
			port++
		}
		ask := packet{protocol: lb.UDP, src: way.client, dst: way.vip, sport: port, dport: 53, payload: text}
		got := packet{protocol: lb.UDP, src: way.vip, dst: way.dip, sport: port, dport: 5353, payload: text}
		in, out := cut(ask.bytes(t), 0xabcd, 32, 64), cut(got.bytes(t), 0xabcd, 32, 64)
		e.expect(way.client+" first", tunnel(t, way.source, way.dip, in[0]), verdictRedirect, frame(out[0]), "in_delivered", "client_here")
		for i := 1; i < 3; i++ {
			e.expect(way.client+" later", tunnel(t, way.source, way.dip, in[i]), verdictRedirect, frame(out[i]), "in_delivered", "fragment_followed", "client_here")
		}
		e.answered(way.client+" later, on its way out", frame(in[1]), verdictNext, frame(in[1]), "pass_not_ours")
		answer := packet{protocol: lb.UDP, src: way.dip, dst: way.vip, sport: 5353, dport: port, payload: text}
		back := packet{protocol: lb.UDP, src: way.vip, dst: way.client, sport: 53, dport: port, payload: text}
		id := uint32(port)
		in, out = cut(answer.bytes(t), id, 64), cut(back.bytes(t), id, 64)
		e.answered(way.client+" answer first", frame(in[0]), verdictRedirect, turned(out[0]), "out_returned", "client_here")
		e.answered(way.client+" answer later", frame(in[1]), verdictRedirect, turned(out[1]), "out_returned", "fragment_followed", "client_here")
	}
}

// TestHostHairpinICMP: errors about answers, and those of servers, are told as both ends know the flow; none comes from the address of the server
// itself, which it would not take.
func TestHostHairpinICMP(t *testing.T) {
	e := newHairpinEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true),
		bind(lb.TCP, vip6, dip6, dip6, true), bind(lb.UDP, vip6, dip6, dip6, true))
	for _, c := range []struct {
		protocol                 lb.Protocol
		client, vip, dip, source string
		vport, dport             uint16
		errors                   []errorKind
	}{
		{lb.TCP, dip4, vip4, dip4, source4, 80, 8080, errors4}, {lb.UDP, near4, vip4, dip4, source4, 53, 5353, errors4},
		{lb.TCP, near6, vip6, dip6, source6, 80, 8080, errors6}, {lb.UDP, dip6, vip6, dip6, source6, 53, 5353, errors6},
	} {
		asked := packet{protocol: c.protocol, src: c.client, dst: c.vip, sport: 40001, dport: c.vport, ack: true, payload: "what is this"}
		got := packet{protocol: c.protocol, src: c.vip, dst: c.dip, sport: 40001, dport: c.dport, ack: true, payload: "what is this"}
		sent := packet{protocol: c.protocol, src: c.dip, dst: c.vip, sport: c.dport, dport: 40001, ack: true, payload: "an answer"}
		left := packet{protocol: c.protocol, src: c.vip, dst: c.client, sport: c.vport, dport: 40001, ack: true, payload: "an answer"}
		e.run(e.host.objects.HostIn, tunnel(t, c.source, c.dip, asked.bytes(t)))
		e.run(e.host.objects.HostOut, frame(sent.bytes(t)))
		for _, k := range c.errors {
			for _, n := range quotes {
				name := fmt.Sprintf("%s %s type %d quote %d", c.protocol, c.client, k.kind, n)
				in := icmp(t, c.client, c.vip, k.kind, k.code, k.word, quote(left.bytes(t), n))
				out := icmp(t, c.vip, c.dip, k.kind, k.code, k.word, quote(sent.bytes(t), n))
				e.expect(name, tunnel(t, c.source, c.dip, in), verdictRedirect, frame(out), "in_icmp_delivered", "client_here")
				in = icmp(t, c.dip, c.vip, k.kind, k.code, k.word, quote(got.bytes(t), n))
				out = icmp(t, c.vip, c.client, k.kind, k.code, k.word, quote(asked.bytes(t), n))
				e.answered(name, frame(in), verdictRedirect, turned(out), "out_icmp_returned", "client_here")
			}
		}
	}
}

// TestHostHairpinMoves: such flows, one with another port too, live on in a table of another size.
func TestHostHairpinMoves(t *testing.T) {
	e := newHairpinEnv(t)
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	ports := map[string]uint16{}
	for _, client := range []string{dip4, near4} {
		ask := packet{protocol: lb.TCP, src: client, dst: vip4, sport: 40001, dport: 80, ack: true}
		_, out := e.run(e.host.objects.HostIn, tunnel(t, source4, dip4, ask.bytes(t)))
		ports[client] = binary.BigEndian.Uint16(out[34:])
	}
	e.flows = MinHostFlows * 2
	e.open()
	e.quiet()
	for client, port := range ports {
		answer := packet{protocol: lb.TCP, src: dip4, dst: vip4, sport: 8080, dport: port, ack: true}
		back := packet{protocol: lb.TCP, src: vip4, dst: client, sport: 80, dport: 40001, ack: true}
		e.answered(client, frame(answer.bytes(t)), verdictRedirect, turned(back.bytes(t)), "out_returned", "client_here")
	}
	r := hostFlowRecord{Client: netip.MustParseAddr(dip4).As16(), Dip: e.number(dip4), Vip: e.number(vip4), DipPortBe: be16(8080), PeerPortBe: be16(40001),
		Scope: 6, Kind: uint8(hostFlowKindFLOW_HAIRPIN)}
	if _, _, ok := e.host.flows.find(&r, e.tick()); !ok {
		t.Error("the agent does not find what the program made")
	}
}
