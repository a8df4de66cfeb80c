package dataplane

import (
	"fmt"
	"maps"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// setECN sets the last two bits of the traffic class of an IP header.
func setECN(ip []byte, ecn byte) {
	if ip[0]>>4 == 6 {
		ip[1] = ip[1]&^0x30 | ecn<<4
		return
	}
	ip[1] = ip[1]&^3 | ecn
	ip[10], ip[11] = 0, 0
	sum := ^headerSum(ip[:20])
	ip[10], ip[11] = byte(sum>>8), byte(sum)
}

func ecnOf(ip []byte) byte {
	if ip[0]>>4 == 6 {
		return ip[1] >> 4 & 3
	}
	return ip[1] & 3
}

// headerSum is the one's complement sum of RFC 1071; 0xffff over a header with a right checksum.
func headerSum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// TestHostCongestion: the table of RFC 6040 figure 4, for every pair of families: a mark of the tunnel reaches the
// packet, and one that its sender would not understand drops it.
func TestHostCongestion(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, vip6, dip6, dip6, true),
		bind(lb.TCP, vip4, host6, dip4, true), bind(lb.TCP, vip6, host4, dip6, true))
	const notECT, ce = 0, 3
	for _, way := range []struct{ client, vip, source, outer string }{
		{client4, vip4, source4, dip4}, {client6, vip6, source6, dip6},
		{client4, vip4, source6, host6}, {client6, vip6, source4, host4},
	} {
		for outer := byte(0); outer < 4; outer++ {
			for inner := byte(0); inner < 4; inner++ {
				p := packet{protocol: lb.TCP, src: way.client, dst: way.vip, sport: 4000, dport: 80, ack: true, payload: "hello"}.bytes(t)
				setECN(p, inner)
				in := tunnel(t, way.source, way.outer, p)
				setECN(in[14:], outer)
				verdict, reason, want := int32(verdictRedirect), "in_delivered", inner
				switch {
				case outer == ce && inner == notECT:
					verdict, reason = verdictDrop, "in_malformed"
				case outer == ce:
					want = ce
				}
				before := e.reasons(nil)
				got, out := e.run(e.host.objects.HostIn, in)
				name := fmt.Sprintf("%s by %s, outer %d, inner %d", way.vip, way.outer, outer, inner)
				if r := e.reasons(before); got != verdict || !maps.Equal(r, one(reason)) {
					t.Errorf("%s: verdict %d, reasons %v, want %d, %s", name, got, r, verdict, reason)
				} else if verdict == verdictRedirect && (ecnOf(out[14:]) != want || is4(way.vip) && headerSum(out[14:34]) != 0xffff) {
					t.Errorf("%s: header % x, want ECN %d and a right checksum", name, out[14:34], want)
				}
			}
		}
	}
}

// TestHostOwnedLost: a packet for a VIP that its server owns does not go back to the router, which would send it to the
// muxes again; to a server on the uplink's own link it goes.
func TestHostOwnedLost(t *testing.T) {
	const far4, far6, near4, near6 = "10.77.0.1", "2001:db8:77::1", "198.51.100.77", "2001:db8:100::77"
	e := newHostEnv(t).quiet()
	must(t, netdev.In(e.namespace, func() error {
		for _, r := range [][]string{{far4, "198.51.100.1"}, {far6, "2001:db8:100::1"}} {
			if out, err := exec.Command("ip", "route", "add", r[0], "via", r[1], "dev", "up0", "onlink").CombinedOutput(); err != nil {
				return fmt.Errorf("add route to %s: %w: %s", r[0], err, out)
			}
		}
		return nil
	}))
	e.apply(bind(lb.TCP, vip4, far4, far4, false), bind(lb.TCP, vip6, far6, far6, false),
		bind(lb.TCP, vip4, near4, near4, false), bind(lb.TCP, vip6, near6, near6, false),
		bind(lb.TCP, "203.0.113.11", far4, far4, true))
	for _, c := range []struct {
		vip, dip string
		verdict  int32
		reason   string
	}{
		{vip4, far4, verdictDrop, "in_no_route"},
		{vip6, far6, verdictDrop, "in_no_route"},
		{vip4, near4, verdictRedirect, "in_untouched"},
		{vip6, near6, verdictRedirect, "in_untouched"},
		{"203.0.113.11", far4, verdictRedirect, "in_delivered"},
	} {
		client, source := client4, source4
		if !is4(c.vip) {
			client, source = client6, source6
		}
		p := packet{protocol: lb.TCP, src: client, dst: c.vip, sport: 4000, dport: 80, ack: true}.bytes(t)
		before := e.reasons(nil)
		verdict, _ := e.run(e.host.objects.HostIn, tunnel(t, source, c.dip, p))
		if got := e.reasons(before); verdict != c.verdict || !maps.Equal(got, one(c.reason)) {
			t.Errorf("%s at %s: verdict %d, reasons %v, want %d, %s", c.vip, c.dip, verdict, got, c.verdict, c.reason)
		}
	}
}

// TestHostDirect: a client that goes past the VIP, from a port that it had used for the VIP, is answered by the DIP once the server accepts that
// connection. SYNs that the server does not accept, other packets to the DIP, and SYNs from other ports end no flow.
func TestHostDirect(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, vip6, dip6, dip6, true))
	const isn, mine, theirs = 0x11223344, 0x50000000, 0x70000000
	for _, way := range []struct{ client, vip, dip, source string }{{client4, vip4, dip4, source4}, {client6, vip6, dip6, source6}} {
		open := packet{protocol: lb.TCP, src: way.client, dst: way.vip, sport: 4000, dport: 80, syn: true}.bytes(t)
		answer := func(p packet) []byte {
			p.protocol, p.src, p.dst, p.sport, p.dport, p.ack = lb.TCP, way.dip, way.client, 8080, 4000, true
			return frame(p.bytes(t))
		}
		direct := func(p packet) []byte {
			p.protocol, p.src, p.dst, p.dport = lb.TCP, way.client, way.dip, 8080
			if p.sport == 0 {
				p.sport = 4000
			}
			return frame(p.bytes(t))
		}
		step := func(what string, p *ebpf.Program, in []byte, reason string) {
			t.Helper()
			before := e.reasons(nil)
			e.run(p, in)
			if got := e.reasons(before); !maps.Equal(got, one(reason)) {
				t.Errorf("%s: %s: reasons %v, want %s", way.vip, what, got, reason)
			}
		}
		in, out := e.host.objects.HostIn, e.host.objects.HostOut
		step("opened by the VIP", in, tunnel(t, way.source, way.dip, open), "in_delivered")
		step("direct, not opening", in, direct(packet{ack: true}), "pass_not_ours")
		step("direct, another port", in, direct(packet{sport: 4001, syn: true, seq: mine}), "pass_not_ours")
		step("answer of the VIP", out, answer(packet{syn: true, acked: isn + 1}), "out_returned")
		step("direct, the same port", in, direct(packet{syn: true, seq: mine}), "pass_not_ours")
		step("direct, a SYN-ACK", in, direct(packet{syn: true, ack: true, seq: mine}), "pass_not_ours")
		step("challenge ACK of the VIP", out, answer(packet{acked: isn + 1}), "out_returned")
		step("the VIP's SYN-ACK again", out, answer(packet{syn: true, acked: isn + 1}), "out_returned")
		step("direct, the same port, other data", in, direct(packet{syn: true, seq: theirs, payload: "fast"}), "pass_not_ours")
		step("a SYN-ACK for the SYN before that", out, answer(packet{syn: true, acked: mine + 1}), "out_returned")
		step("a SYN-ACK for the SYN and half of its data", out, answer(packet{syn: true, acked: theirs + 3}), "out_returned")
		step("answer of the DIP", out, answer(packet{syn: true, acked: theirs + 5, seq: 7}), "pass_not_ours")
		step("the DIP goes on", out, answer(packet{acked: theirs + 5, seq: 8, payload: "x"}), "pass_not_ours")
		step("opened by the VIP again", in, tunnel(t, way.source, way.dip, open), "in_delivered")
		step("answer of the VIP again", out, answer(packet{syn: true, acked: isn + 1}), "out_returned")
		step("direct again", in, direct(packet{syn: true, seq: mine}), "pass_not_ours")
		step("answer of the DIP again", out, answer(packet{syn: true, acked: mine + 1, seq: 7}), "pass_not_ours")
	}
}

// TestHostNoDirectYet: no flow is replaced by a connection to its server's own address before a client opened one, in particular not the flow in the
// first place of the table, whose number is that of no place in a new note, when the client's initial sequence number is 2^32 - 1.
func TestHostNoDirectYet(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.apply(bind(lb.TCP, vip4, dip4, dip4, true))
	table := e.host.flows
	var r hostFlowRecord
	for port := uint16(1024); ; port++ {
		r = flowOf(e, client4, dip4, port)
		if hash := table.hash(&r); table.bucket(hash, false) == 0 || table.bucket(hash, true) == 0 {
			break
		}
		if port == 65535 {
			t.Fatal("no port has the first bucket")
		}
	}
	r.Vip, r.VipPortBe, r.ClientPortBe = e.number(vip4), be16(80), r.PeerPortBe
	table.records[0] = r
	table.tags[0].Tags[0] = uint64(newFlowTag(table.hash(&r), 1, FlowTrusted, e.tick()+1000))
	for _, p := range []packet{{syn: true, ack: true}, {ack: true, seq: 1}} {
		p.protocol, p.src, p.dst, p.sport, p.dport = lb.TCP, dip4, client4, 8080, bits.ReverseBytes16(r.PeerPortBe)
		before := e.reasons(nil)
		e.run(e.host.objects.HostOut, frame(p.bytes(t)))
		if got := e.reasons(before); !maps.Equal(got, one("out_returned")) {
			t.Errorf("a segment of the server: reasons %v, want out_returned", got)
		}
	}
}

// TestHostReplacesAll: old and new bindings together may be more than the maps hold.
func TestHostReplacesAll(t *testing.T) {
	e := newHostEnv(t).quiet()
	const n = hostMaxBindings/2 + 1
	for _, vip := range []string{vip4, "203.0.113.11"} {
		all := make([]plan.Binding, n)
		for i := range all {
			all[i] = bind(lb.TCP, vip, dip4, dip4, true)
			all[i].Key.Port = uint16(i + 1)
		}
		e.apply(all...)
	}
	if got := len(e.host.state.bindings); got != n {
		t.Errorf("%d bindings, want %d", got, n)
	}
}

// TestDetachLeavesOthers: a wrong directory loses nothing but pins of ours.
func TestDetachLeavesOthers(t *testing.T) {
	e := newHostEnv(t)
	other := filepath.Join(e.dir, "other")
	must(t, os.Mkdir(other, 0o700))
	must(t, DetachHost(e.dir))
	entries, err := os.ReadDir(e.dir)
	must(t, err)
	if len(entries) != 1 || entries[0].Name() != "other" {
		t.Errorf("%v is left, want other", entries)
	}
	must(t, os.Remove(other))
	must(t, DetachHost(e.dir))
	if _, err := os.Stat(e.dir); !os.IsNotExist(err) {
		t.Errorf("the empty directory is left: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, DetachHost(filepath.Dir(file)))
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
