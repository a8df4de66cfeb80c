package dataplane

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/snat"
	"github.com/shuntlb/shunt/internal/wire"
)

// snatServer is a member that is reached at an address.
func snatServer(outer, encap string, mtu uint32) SNATMember {
	a := netip.MustParseAddr(outer)
	return SNATMember{DIP: a, Outer: a, Encap: encap, MTU: mtu}
}

// snatServers and snatWords are who has ports of muxVIP4: member i those of range FirstRange+i, the first the last range of all. The
// fifth is a place without a member.
var snatServers = []SNATMember{
	snatServer("10.20.1.11", lb.EncapIPIP, 1500),
	snatServer("10.20.2.11", lb.EncapGUE, 1500),
	snatServer("2001:db8:20:1::11", lb.EncapGUE, 1500),
	snatServer("10.20.1.12", lb.EncapIPIP, 576),
	{},
	snatServer("2001:db8:20:1::12", lb.EncapIPIP, 0),
	snatServer("10.20.99.99", lb.EncapIPIP, 1500), // there is no way to it
}

func snatWords() *[snat.Ranges]uint16 {
	words := &[snat.Ranges]uint16{}
	for i := range snatServers {
		words[snat.FirstRange+i] = uint16(i + 1)
	}
	words[snat.Ranges-1] = 1
	return words
}

func snatFixture(t testing.TB) *muxFixture {
	f := edgeFixture(t)
	hops := hopsTo(f.model.state)
	for _, m := range snatServers[:6] {
		if m.Outer.IsValid() {
			hops[m.Outer] = NextHop{MAC: muxRouter, Ifindex: ingress}
		}
	}
	f.setHops(hops)
	f.setSNAT(muxVIP4, snatServers, snatWords())
	return f
}

// echo4 is an ICMP echo message to muxVIP4.
func echo4(reply bool, id uint16) wire.Packet {
	p := tcp4(0)
	p.Payload = wire.Echo{Reply: reply, ID: id, Seq: 7, Data: []byte("data")}
	return p
}

// fromPort makes a packet one from a port.
func fromPort(p wire.Packet, src netip.Addr, port uint16) wire.Packet {
	p.Src = src
	switch l4 := p.Payload.(type) {
	case wire.TCP:
		l4.SrcPort = port
		p.Payload = l4
	case wire.UDP:
		l4.SrcPort = port
		p.Payload = l4
	}
	return p
}

func snatCases() []packetCase {
	dying, dyingLater := tcp4(1024), piece4(300, 512, false, 0)
	dying.TTL, dyingLater.TTL = 1, 1
	sentEcho := wire.Packet{DstMAC: muxSelf, SrcMAC: muxRouter, Src: muxVIP4, Dst: muxClient4, TTL: 60, Payload: wire.Echo{ID: 1024, Data: []byte("data")}}
	sentReply := sentEcho
	sentReply.Payload = wire.Echo{Reply: true, ID: 1024, Data: []byte("data")}
	nobodysEcho := sentEcho
	nobodysEcho.Payload = wire.Echo{ID: 5000, Data: []byte("data")}
	pieceOfEcho := echo4(true, 1025)
	pieceOfEcho.Flags, pieceOfEcho.ID = 0x2000, 301
	laterOfEcho := piece4(301, 512, false, 0)
	laterOfEcho.Payload = wire.Raw{Number: wire.ProtoICMP, Data: make([]byte, 64)}
	pieceOfNobody, pieceOfRequest := pieceOfEcho, echo4(false, 1025)
	pieceOfNobody.ID, pieceOfNobody.Payload = 302, wire.Echo{Reply: true, ID: 5000, Data: make([]byte, 64)}
	pieceOfRequest.ID, pieceOfRequest.Flags = 303, 0x2000
	laterOfNobody := laterOfEcho
	laterOfNobody.ID = 302
	fits, big4 := big(udp4(1048), 556), big(udp4(1048), 557)
	bigError := errorAbout(answerTo(tcp4(1048)), 3, 4, 60)
	raw := bigError.Payload.(wire.Raw)
	raw.Data = append(raw.Data, make([]byte, 600)...)
	bigError.Payload = raw
	gre := answerTo(tcp4(1024))
	gre.Payload = wire.Raw{Number: 47, Data: make([]byte, 20)}
	fragmented, follows := longer(fromPort(piece4(305, 0, true, 53), muxVIP4, 1024).Frame(), 14+24), piece4(305, 512, false, 0)
	follows.Src = muxVIP4
	return []packetCase{
		{"TCP, first port of the range", tcp4(1024).Frame(), "forwarded"},
		{"TCP, last port of the range", tcp4(1031).Frame(), "forwarded"},
		{"TCP, last range of all", tcp4(65535).Frame(), "forwarded"},
		{"UDP", udp4(1027).Frame(), "forwarded"},
		{"GUE, of no member", tcp4(1032).Frame(), "forwarded"},
		{"GUE over IPv6", udp4(1040).Frame(), "forwarded"},
		{"4in6, MTU not known", udp4(1064).Frame(), "forwarded"},
		{"echo reply", echo4(true, 1024).Frame(), "forwarded"},
		{"echo reply through GUE", echo4(true, 1033).Frame(), "forwarded"},
		{"echo request", echo4(false, 1024).Frame(), "echo_replied"},
		{"tagged TCP", tagged(tcp4(1024).Frame(), 0x8100_0064), "forwarded"},
		{"tagged echo reply", tagged(echo4(true, 1024).Frame(), 0x8100_0064), "forwarded"},
		{"an endpoint's port", tcp4(80).Frame(), "forwarded"},
		{"nobody's range", tcp4(1080).Frame(), "snat_nobody"},
		{"nobody's range, UDP", udp4(40000).Frame(), "snat_nobody"},
		{"nobody's identifier", echo4(true, 80).Frame(), "snat_nobody"},
		{"a place without a member", tcp4(1056).Frame(), "snat_nobody"},
		{"a port below 1024", tcp4(23).Frame(), "snat_nobody"},
		{"tagged, nobody's range", tagged(tcp4(1080).Frame(), 0x8100_0064), "snat_nobody"},
		{"a VIP without SNAT", tcp6(1024).Frame(), "no_endpoint"},
		{"another protocol", with(tcp4(1024).Frame(), func(b []byte) { b[23] = 47 }), "protocol"},
		{"no way to the server", tcp4(1072).Frame(), "no_nexthop"},
		{"TTL 1", dying.Frame(), "ttl_expired"},

		{"that just fits", fits.Frame(), "forwarded"},
		{"one byte more", big4.Frame(), "ptb_sent"},
		{"error that does not fit", bigError.Frame(), "too_big"},

		{"unreachable about TCP", errorAbout(answerTo(tcp4(1024)), 3, 1, 28).Frame(), "forwarded"},
		{"too big about UDP", errorAbout(answerTo(udp4(1032)), 3, 4, 60).Frame(), "forwarded"},
		{"time exceeded about an echo request", errorAbout(sentEcho, 11, 0, 60).Frame(), "forwarded"},
		{"about an endpoint's packet", errorAbout(answerTo(tcp4(80)), 3, 1, 28).Frame(), "forwarded"},
		{"tagged error", tagged(errorAbout(answerTo(tcp4(1024)), 3, 1, 28).Frame(), 0x8100_0064), "forwarded"},
		{"about nobody's port", errorAbout(answerTo(tcp4(1080)), 3, 1, 60).Frame(), "icmp_error_unknown"},
		{"about nobody's echo request", errorAbout(nobodysEcho, 3, 1, 60).Frame(), "icmp_error_unknown"},
		{"about an echo reply of the VIP", errorAbout(sentReply, 3, 1, 60).Frame(), "icmp_error_unknown"},
		{"about GRE", errorAbout(gre, 3, 1, 60).Frame(), "icmp_error_unknown"},

		{"first fragment", longer(piece4(300, 0, true, 1024).Frame(), 14+24), "forwarded"},
		{"second fragment", piece4(300, 512, true, 0).Frame(), "forwarded"},
		{"last fragment", piece4(300, 1024, false, 0).Frame(), "forwarded"},
		{"last fragment, TTL 1", dyingLater.Frame(), "ttl_expired"},
		{"first fragment of an echo reply", pieceOfEcho.Frame(), "forwarded"},
		{"last fragment of an echo reply", laterOfEcho.Frame(), "forwarded"},
		{"first fragment of nobody's echo reply", pieceOfNobody.Frame(), "snat_nobody"},
		{"last fragment of nobody's echo reply", laterOfNobody.Frame(), "fragment"},
		{"first fragment of an echo request", pieceOfRequest.Frame(), "fragment"},
		{"first fragment to nobody", longer(piece4(304, 0, true, 1080).Frame(), 14+24), "snat_nobody"},

		// From a VIP's port that a server has: not answered for ever.
		{"server to an endpoint", fromPort(tcp4(80), muxVIP4, 1024).Frame(), "forwarded"},
		{"server to a server", fromPort(tcp4(1032), muxVIP4, 1024).Frame(), "forwarded"},
		{"endpoint to a server", fromPort(tcp4(1024), muxVIP4, 80).Frame(), "forwarded"},
		{"nobody's port to an endpoint", fromPort(tcp4(80), muxVIP4, 1080).Frame(), "bad_source"},
		{"endpoint to an endpoint", fromPort(tcp4(80), muxVIP4, 80).Frame(), "bad_source"},
		{"server to an endpoint, first fragment", fragmented, "forwarded"},
		{"server to an endpoint, last fragment", follows.Frame(), "forwarded"},
	}
}

// TestSNATPackets: verdict, bytes and counted reasons are the model's, which takes endpoints before leases.
func TestSNATPackets(t *testing.T) {
	f := snatFixture(t)
	for _, c := range snatCases() {
		t.Run(c.name, func(t *testing.T) {
			f.t = t
			if got := f.check(c.frame); got.reason != c.reason {
				t.Errorf("the model says %s, expected %s", got.reason, c.reason)
			}
		})
	}
}

// TestSNATBytes writes one packet of each form of tunnel down.
func TestSNATBytes(t *testing.T) {
	f := snatFixture(t)
	for _, c := range []struct {
		port   uint16
		dst    string
		before int // bytes of outer headers
	}{{1024, "10.20.1.11", 20}, {1032, "10.20.2.11", 44}, {1040, "2001:db8:20:1::11", 64}, {1064, "2001:db8:20:1::12", 40}} {
		in := tcp4(c.port).Frame()
		verdict, out := f.run(in)
		if verdict != xdpTX || len(out) != len(in)+c.before {
			t.Fatalf("port %d: verdict %d, %d bytes became %d", c.port, verdict, len(in), len(out))
		}
		outer, err := wire.ParseFrame(out)
		must(t, err)
		if outer.Dst != netip.MustParseAddr(c.dst) {
			t.Errorf("port %d: sent to %v", c.port, outer.Dst)
		}
		inner := with(slices.Clone(in), func(b []byte) { b[22]-- })[14:]
		if !bytes.Equal(out[14+c.before:], inner) {
			t.Errorf("port %d: inner packet %x, expected %x", c.port, out[14+c.before:], inner)
		}
		if gue := out[14+c.before-24:]; c.before == 44 || c.before == 64 {
			// UDP 6080, version 0 with 12 octets, IPv4 inside; no member before, VNI 0, no member.
			if want := []byte{0x17, 0xc0}; !bytes.Equal(gue[2:4], want) {
				t.Errorf("port %d: to UDP port %x", c.port, gue[2:4])
			}
			if want := []byte{3, 4, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0, 0}; !bytes.Equal(gue[8:24], want) {
				t.Errorf("port %d: GUE %x, expected %x", c.port, gue[8:24], want)
			}
		}
	}
}

// TestSNATPrecedence: while an endpoint takes a port, its server does not; when the endpoint goes, the server does again.
func TestSNATPrecedence(t *testing.T) {
	f := snatFixture(t)
	without := f.model.state
	for _, e := range []MuxEndpoint{
		endpointOf(muxVIP4, lb.TCP, 1024, "10.20.3.11"), ranged(muxVIP4, lb.TCP, 1000, 1030, "10.20.3.11"),
		ranged(muxVIP4, lb.TCP, 0, maxPort, "10.20.3.11"), ranged(muxVIP4, lb.AnyProtocol, 0, maxPort, "10.20.3.11"),
	} {
		s := without
		s.Endpoints = append(slices.Clone(s.Endpoints), e)
		f.change(s)
		if got := f.check(tcp4(1024).Frame()); got.member == nil || got.member.Endpoint != e.Key {
			t.Errorf("%v does not take its packet: %+v", e.Key, got)
		}
		f.change(without)
		if got := f.check(tcp4(1024).Frame()); got.member != nil || got.reason != "forwarded" {
			t.Errorf("%v is gone, and still takes its packet: %+v", e.Key, got)
		}
	}
}

// TestSNATOutbound: a VIP whose last endpoint goes takes answers to its servers as before while it is Outbound, answers echo requests and
// drops all else, also under another owner of the tables. It goes when it is not Outbound any more.
func TestSNATOutbound(t *testing.T) {
	for _, way := range []string{"apply", "change"} {
		t.Run(way, func(t *testing.T) {
			f := snatFixture(t)
			to := f.apply
			if way == "change" {
				to = f.change
			}
			with := f.model.state
			alone := with
			alone.Endpoints = slices.DeleteFunc(slices.Clone(with.Endpoints), func(e MuxEndpoint) bool { return e.Key.VIP == muxVIP4 })
			alone.VIPs = append(slices.DeleteFunc(slices.Clone(with.VIPs), func(v MuxVIP) bool { return v.VIP == muxVIP4 }),
				MuxVIP{VIP: muxVIP4, Limits: lb.Limits{Ping: 1000}, Outbound: true})
			for turn := range 2 {
				to(alone)
				for _, c := range []packetCase{
					{"to a server", tcp4(1024).Frame(), "forwarded"},
					{"to a server, UDP", udp4(1032).Frame(), "forwarded"},
					{"echo reply", echo4(true, 1024).Frame(), "forwarded"},
					{"error about a server's packet", errorAbout(answerTo(tcp4(1024)), 3, 1, 28).Frame(), "forwarded"},
					{"nobody's port", tcp4(1080).Frame(), "snat_nobody"},
					{"what was an endpoint's", tcp4(80).Frame(), "snat_nobody"},
					{"echo request", echo4(false, 1024).Frame(), "echo_replied"},
				} {
					if got := f.check(c.frame); got.reason != c.reason {
						t.Errorf("turn %d: %s: the model says %s, expected %s", turn, c.name, got.reason, c.reason)
					}
				}
				to(with)
				if got := f.check(tcp4(80).Frame()); got.member == nil {
					t.Errorf("turn %d: the endpoint is back: %+v", turn, got)
				}
			}
			to(alone)
			f.setSNAT(muxVIP4, nil, nil)
			if got := f.check(tcp4(1024).Frame()); got.reason != "no_endpoint" {
				t.Errorf("without leases: %s", got.reason)
			}
			alone.VIPs = nil
			to(alone)
			if got := f.check(tcp4(1024).Frame()); got.verdict != xdpPass {
				t.Errorf("the VIP is gone: verdict %d", got.verdict)
			}
			to(MuxState{RingKeys: testKeys, TunnelSources: sources})
			f.checkEmpty()
		})
	}
}

// TestSNATChanges: words change one by one, and all of a VIP at once, with and without its members.
func TestSNATChanges(t *testing.T) {
	f := snatFixture(t)
	reasons := func(port uint16) string { f.t.Helper(); return f.check(tcp4(port).Frame()).reason }
	f.changeSNAT(muxVIP4, SNATWord{Range: 128}, SNATWord{Range: 200, Word: 2}, SNATWord{Range: 129, Word: 1})
	if reasons(1024) != "snat_nobody" || reasons(1600) != "forwarded" || reasons(1032) != "forwarded" {
		t.Error("words did not change")
	}
	block := f.mux.tables.snat.byVIP[lb.EndpointKey{VIP: muxVIP4}].index
	f.setSNAT(muxVIP4, snatServers, snatWords())
	if got := f.mux.tables.snat.byVIP[lb.EndpointKey{VIP: muxVIP4}].index; got != block {
		t.Error("equal members were written anew")
	}
	if reasons(1024) != "forwarded" || reasons(1600) != "snat_nobody" {
		t.Error("the words before count")
	}
	f.setSNAT(muxVIP4, snatServers[1:3], &[snat.Ranges]uint16{300: 1, 301: 2})
	if reasons(1024) != "snat_nobody" || reasons(2400) != "forwarded" || reasons(2408) != "forwarded" {
		t.Error("the members before count")
	}
	f.setSNAT(muxVIP4, nil, nil)
	if reasons(2400) != "no_endpoint" {
		t.Error("there is SNAT still")
	}
	for _, c := range []struct {
		what string
		err  error
	}{
		{"it has none", f.mux.ChangeSNAT(snat.VIP{Addr: muxVIP4}, []SNATWord{{Range: 128, Word: 1}})},
		{"must be an IPv4 address", f.mux.SetSNAT(snat.VIP{Addr: muxVIP6}, snatServers, snatWords())},
		{"not supported", f.mux.SetSNAT(snat.VIP{VNI: 1, Addr: muxVIP4}, snatServers, snatWords())},
		{"no outer destination", f.mux.SetSNAT(snat.VIP{Addr: muxVIP4}, []SNATMember{{DIP: muxClient4}}, snatWords())},
		{"must be ipip or gue", f.mux.SetSNAT(snat.VIP{Addr: muxVIP4}, []SNATMember{{DIP: muxClient4, Outer: muxClient4, Encap: "vxlan"}}, snatWords())},
		{"must be at most 2", f.mux.SetSNAT(snat.VIP{Addr: muxVIP4}, snatServers[:2], snatWords())},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.what) {
			t.Errorf("got %v, must say %q", c.err, c.what)
		}
	}
	if f.mux.HeldSNAT() == nil || len(f.mux.HeldSNAT()) != 0 {
		t.Errorf("refused, and there are %v", f.mux.HeldSNAT())
	}
}

// numberedVIP is VIP i of a test with many.
func numberedVIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, byte(100 + i)}) }

// TestSNATRoom: a VIP too many is refused and changes nothing; the others can change all the same.
func TestSNATRoom(t *testing.T) {
	f := snatFixture(t)
	room := int(testLimits.SNAT)
	for i := 1; i < room; i++ {
		f.setSNAT(numberedVIP(i), snatServers[:1], &[snat.Ranges]uint16{200: 1})
	}
	err := f.mux.SetSNAT(snat.VIP{Addr: numberedVIP(room)}, snatServers[:1], snatWords0())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("at most %d (--max-snat-vips)", room)) {
		t.Fatalf("got %v", err)
	}
	if full := (*NoRoom)(nil); !errors.As(err, &full) || full.Table != TableSNAT || full.VIP.VIP != numberedVIP(room) {
		t.Errorf("the error names no table: %#v", err)
	}
	for _, p := range f.mux.Pressure() {
		if p.Name == "snat_vips" && (p.Used != uint64(room) || p.Capacity != uint64(room)) {
			t.Errorf("pressure %+v", p)
		}
	}
	for turn := range 3 { // there is one block beside: nobody waits for another VIP to go
		members := []SNATMember{snatServers[turn], snatServers[0]}
		for i := 1; i < room; i++ {
			must(t, f.mux.SetSNAT(snat.VIP{Addr: numberedVIP(i)}, members, &[snat.Ranges]uint16{200: 2}))
		}
	}
	for _, c := range snatCases()[:5] {
		f.check(c.frame)
	}
	f.setSNAT(numberedVIP(1), nil, nil)
	f.setSNAT(numberedVIP(room), snatServers[:1], snatWords0())

	many := make([]SNATMember, testLimits.Members)
	for i := range many {
		many[i] = snatServers[0]
	}
	err = f.mux.SetSNAT(snat.VIP{Addr: muxVIP4}, many, snatWords0())
	if full := (*NoRoom)(nil); !errors.As(err, &full) || full.Table != TableMembers || !strings.Contains(err.Error(), "--max-members") {
		t.Errorf("got %v", err)
	}
	for _, c := range snatCases()[:5] {
		f.check(c.frame)
	}
	for _, vip := range f.mux.HeldSNAT() {
		f.setSNAT(vip.Addr, nil, nil)
	}
	f.change(MuxState{RingKeys: testKeys, TunnelSources: sources})
	f.checkEmpty()
}

func snatWords0() *[snat.Ranges]uint16 { return &[snat.Ranges]uint16{200: 1} }

// checkSNAT compares, for every VIP and range, what readers see with the model.
func (f *muxFixture) checkSNAT(vips []netip.Addr) {
	f.t.Helper()
	view := tablesView{t: f.mux.tables}
	for _, vip := range vips {
		l := f.model.snat.vips[vip]
		for r := range snat.Ranges {
			got, has := view.snat(lb.EndpointKey{VIP: vip}, uint16(r*8+3))
			if has != (l != nil && f.model.isVIP(vip)) {
				f.t.Fatalf("%v has SNAT: %v", vip, has)
			}
			if !has {
				break
			}
			if i, leased := l.place(uint16(r * 8)); got.leased != leased || leased && got.member.outer != l.members[i].Outer {
				f.t.Fatalf("%v, range %d: %+v, expected member %d of %v", vip, r, got, i, l.members)
			}
		}
	}
}

// TestSNATAgainstModel: VIPs, leases, members and agents come and go in any order, and nothing leaks.
func TestSNATAgainstModel(t *testing.T) {
	f, r := newMuxFixture(t), seeded(t)
	vips := []netip.Addr{numberedVIP(0), numberedVIP(1), numberedVIP(2)}
	randomWords := func(n int) *[snat.Ranges]uint16 {
		words := &[snat.Ranges]uint16{}
		for range 200 {
			words[r.IntN(snat.Ranges)] = uint16(r.IntN(n + 1))
		}
		return words
	}
	for range 200 {
		vip := vips[r.IntN(len(vips))]
		switch r.IntN(8) {
		case 0, 1:
			var s MuxState
			s.RingKeys, s.TunnelSources = testKeys, sources
			for _, v := range vips {
				if r.IntN(3) > 0 {
					s.Endpoints = append(s.Endpoints, endpointOf(v, lb.TCP, 80, "10.20.1.11", "10.20.2.11"))
				}
			}
			f.change(s)
		case 2:
			// Of VIPs that are not in the tables nothing is left.
			f.readopt()
			for _, v := range vips {
				if !f.model.isVIP(v) {
					delete(f.model.snat.vips, v)
				}
			}
		case 3:
			f.setSNAT(vip, nil, nil)
		case 4:
			if l := f.model.snat.vips[vip]; l != nil { // the same members
				f.setSNAT(vip, l.members, randomWords(len(l.members)))
			}
		case 5, 6:
			if l := f.model.snat.vips[vip]; l != nil {
				f.changeSNAT(vip, SNATWord{snat.Range(r.IntN(snat.Ranges)), uint16(r.IntN(len(l.members) + 1))})
			}
		default:
			members := make([]SNATMember, 1+r.IntN(9))
			for i := range members {
				members[i] = snatServers[r.IntN(len(snatServers))]
			}
			f.setSNAT(vip, members, randomWords(len(members)))
		}
		f.checkSNAT(vips)
	}
	for _, vip := range vips {
		f.setSNAT(vip, nil, nil)
	}
	f.change(MuxState{RingKeys: testKeys, TunnelSources: sources})
	f.checkEmpty()
}

// TestSNATUnderTraffic: a port is a server's whatever becomes of its place among the members, and of the ports of others.
func TestSNATUnderTraffic(t *testing.T) {
	f, r := snatFixture(t), rand.New(rand.NewPCG(1, 1))
	mine, other := snatServers[0], snatServers[1]
	var done atomic.Bool
	result := make(chan error, 1)
	go func() {
		frame, n := tcp4(1027).Frame(), 0
		for ; !done.Load() || n < 1000; n++ {
			opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
			verdict, err := f.mux.Program().Run(&opts)
			if err != nil || verdict != xdpTX || netip.AddrFrom4([4]byte(opts.DataOut[30:])) != mine.Outer {
				result <- fmt.Errorf("packet %d: verdict %d, %x: %w", n, verdict, opts.DataOut, err)
				return
			}
		}
		result <- nil
	}()
	vip := snat.VIP{Addr: muxVIP4}
	for range 100 {
		// Mine is in another place than before, and the other server's ports surround it.
		n := 2 + r.IntN(6)
		members, at := make([]SNATMember, n), r.IntN(n)
		for i := range members {
			members[i] = other
		}
		members[at] = mine
		words := &[snat.Ranges]uint16{}
		for i := range words {
			words[i] = uint16(1 + (at+1)%n)
		}
		words[128] = uint16(at + 1)
		must(t, f.mux.SetSNAT(vip, members, words))
		for range 50 {
			i := snat.Range(124 + r.IntN(8))
			if i != 128 {
				must(t, f.mux.ChangeSNAT(vip, []SNATWord{{i, uint16(r.IntN(n + 1))}}))
			}
		}
	}
	done.Store(true)
	if err := <-result; err != nil {
		t.Errorf("%v: %v", err, f.reasonsNow())
	}
}

// TestSNATTrace: a trace goes where the packet goes, with its outer source.
func TestSNATTrace(t *testing.T) {
	f, r := snatFixture(t), seeded(t)
	for range 300 {
		port, from := uint16(1000+r.IntN(110)), uint16(r.Uint32())
		q := Packet{Client: muxClient4, VIP: muxVIP4, Protocol: lb.TCP, ClientPort: from, Port: port}
		got, err := f.mux.Trace(q)
		must(t, err)
		want := f.check(fromPort(tcp4(port), muxClient4, from).Frame())
		switch want.reason {
		case "forwarded", "no_nexthop":
			if got.Verdict != "forwarded" || !got.SNAT || want.reason == "forwarded" && !outerIs(want.frame, got.Source, got.Outer) {
				t.Fatalf("%+v: traced %+v, sent %s: %x", q, got, want.reason, want.frame)
			}
		default:
			if got.Verdict != want.reason {
				t.Fatalf("%+v: traced %+v, sent: %s", q, got, want.reason)
			}
		}
	}
}

// TestSNATFragmentsAreForgotten: when their server has no port of the VIP any more.
func TestSNATFragmentsAreForgotten(t *testing.T) {
	f := snatFixture(t)
	later := piece4(9, 512, false, 0)
	if got := f.check(longer(piece4(9, 0, true, 1032).Frame(), 14+24)); got.reason != "forwarded" {
		t.Fatalf("first fragment: %s", got.reason)
	}
	if got := f.check(later.Frame()); got.reason != "forwarded" || !slices.Contains(f.model.noted, "fragment_followed") {
		t.Fatalf("later fragment: %s %v", got.reason, f.model.noted)
	}
	f.setSNAT(muxVIP4, nil, nil)
	delete(f.model.edge.fragments, modelFragmentKey{muxClient4, muxVIP4, 9, 17})
	f.check(later.Frame()) // to who takes fragments by their addresses
	if slices.Contains(f.model.noted, "snat_forwarded") {
		t.Error("the fragment followed")
	}
}

// TestSNATAccounts: answers to servers' own connections are counted by their VIP, with what is refused of them, and the VIP's limit of packets applies to them together with
// those of its endpoints. Sources that its endpoints deny may answer.
func TestSNATAccounts(t *testing.T) {
	f := snatFixture(t)
	f.model.policy.packets, f.model.policy.flows = map[netip.Addr]*bucketModel{}, map[netip.Addr]*bucketModel{}
	s := f.model.state
	s.VIPs = append(slices.Clone(s.VIPs), MuxVIP{VIP: muxVIP4, Limits: lb.Limits{Packets: 160}})
	f.apply(s)
	answer := tcp4(snat.FirstRange * 8)
	vip := lb.EndpointKey{VIP: muxVIP4}
	for range 10 {
		if got := f.check(answer.Frame()); got.reason != "forwarded" {
			t.Fatalf("an answer: %s", got.reason)
		}
	}
	for range 6 {
		if got := f.check(tcp4(80).Frame()); got.reason != "forwarded" {
			t.Fatalf("a packet to an endpoint: %s", got.reason)
		}
	}
	for _, frame := range [][]byte{answer.Frame(), tcp4(80).Frame()} {
		if got := f.check(frame); got.reason != "rate_limited" {
			t.Errorf("the limit is spent: %s", got.reason)
		}
	}
	c, err := f.mux.Counters()
	must(t, err)
	if want := (Counter{11, 11 * uint64(len(answer.IP()))}); c.Answers[vip] != want {
		t.Errorf("answers %+v, expected %+v", c.Answers[vip], want)
	}
	// Members that change take nothing of the count away.
	f.setSNAT(muxVIP4, snatServers[:1], &[snat.Ranges]uint16{snat.FirstRange: 1})
	if c, err = f.mux.Counters(); err != nil || c.Answers[vip].Packets != 11 {
		t.Errorf("after a change of members %+v, %v", c.Answers[vip], err)
	}
}
