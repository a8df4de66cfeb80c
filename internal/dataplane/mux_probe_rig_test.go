package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/wire"
)

const (
	probePort = 61500
	probeISN  = 0x5a5 // the random part
	probeTime = 123456789
)

var (
	probeLocal4  = netip.MustParseAddr("10.10.0.11")
	probeLocal6  = netip.MustParseAddr("2001:db8:10::11")
	probeServer4 = netip.MustParseAddr("10.20.1.11")
	probeServer6 = netip.MustParseAddr("2001:db8:20:1::11")
	probeText    = []byte("GET /healthz HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n")
)

// probeRig is a mux with one probe, number 77, in a round.
type probeRig struct {
	*muxFixture
	probes *Probes
	rule   ProbeRule
	isn    uint32
	tag    uint32
	number uint32
}

// newProbeRig begins a round of a rule. Its device is the one that prog-run says packets come in by.
func newProbeRig(t *testing.T, f *muxFixture, r ProbeRule) *probeRig {
	t.Helper()
	p, err := f.mux.Probes()
	must(t, err)
	if r.Hop == (NextHop{}) {
		r.Hop = NextHop{MAC: muxRouter, Ifindex: ingress}
	}
	rig := &probeRig{muxFixture: f, probes: p, rule: r, number: 77, tag: r.Hop.Tag}
	must(t, p.Put(rig.number, r))
	rig.begin(probeISN)
	f.setJiffies(probeTime)
	return rig
}

// begin begins a round.
func (r *probeRig) begin(random uint32) {
	r.isn = r.probes.Key().ISN(r.number) | random
	r.probes.Begin(r.number, r.isn, probePort)
}

// packet is one of the server.
func (r *probeRig) packet(seg wire.TCP) wire.Packet {
	seg.SrcPort = r.rule.Peer.Port()
	if seg.DstPort == 0 {
		seg.DstPort = probePort
	}
	return wire.Packet{DstMAC: muxSelf, SrcMAC: muxRouter, Src: r.rule.Peer.Addr(), Dst: r.rule.Local, Payload: seg}
}

// sent is the frame of a segment to the server, tunnel and tag included.
func (r *probeRig) sent(seg wire.TCP) []byte {
	seg.DstPort, seg.Window = r.rule.Peer.Port(), ProbeWindow
	if seg.SrcPort == 0 {
		seg.SrcPort = probePort
	}
	p := wire.Packet{DstMAC: muxRouter, SrcMAC: testMAC(r.rule.Hop.Ifindex), Src: r.rule.Local, Dst: r.rule.Peer.Addr(), Flags: 0x4000, Payload: seg}
	if p.Src.Is6() {
		p.Flags = 0
	}
	frame := p.Frame()
	outer := r.rule.Outer
	if len(seg.Data) > 0 {
		outer = stretched(outer, len(seg.Data))
	}
	if len(outer) > 0 {
		frame = slices.Concat(frame[:12], []byte{8, 0}, outer, frame[14:])
		if outer[0]>>4 == 6 {
			frame[12], frame[13] = 0x86, 0xdd
		}
	}
	return withTag(frame, r.tag)
}

// expect runs a frame: its verdict, what leaves, the one reason that is counted, and the result.
func (r *probeRig) expect(name string, frame []byte, verdict uint32, out []byte, reason string, want ProbeResult) {
	r.t.Helper()
	before := r.reasonsNow()
	gotVerdict, gotOut := r.run(frame)
	if gotVerdict != verdict || !bytes.Equal(gotOut, out) {
		r.t.Fatalf("%s: got verdict %d, frame\n%x\nwant verdict %d, frame\n%x", name, gotVerdict, gotOut, verdict, out)
	}
	after := r.reasonsNow()
	for n := range after {
		counted, wanted := after[n]-before[n], uint64(0)
		if n == reason {
			wanted = 1
		}
		if counted != wanted {
			r.t.Fatalf("%s: reason %s counted %d times, want %s alone", name, n, counted, reason)
		}
	}
	if want.State != ProbeSilent {
		want.Time = probeTime
	}
	if got := r.probes.Result(r.number, r.isn); got != want {
		r.t.Fatalf("%s: result %+v, want %+v", name, got, want)
	}
}

// again begins a fresh round, after which nothing is known.
func (r *probeRig) again() {
	r.begin(probeISN ^ 1)
	r.begin(probeISN)
}

// stretched are outer headers with so many bytes more behind them.
func stretched(outer []byte, more int) []byte {
	if len(outer) == 0 {
		return nil
	}
	be, b, at, protocol := binary.BigEndian, slices.Clone(outer), 20, 9
	if b[0]>>4 == 4 {
		be.PutUint16(b[2:], be.Uint16(b[2:])+uint16(more))
		b[10], b[11] = 0, 0
		be.PutUint16(b[10:], wire.Checksum(b[:20]))
	} else {
		at, protocol = 40, 6
		be.PutUint16(b[4:], be.Uint16(b[4:])+uint16(more))
	}
	if b[protocol] == wire.ProtoUDP {
		be.PutUint16(b[at+4:], be.Uint16(b[at+4:])+uint16(more))
	}
	return b
}

// probeWays are rules over every way to a server.
func probeWays(t *testing.T, request []byte) map[string]ProbeRule {
	t.Helper()
	rule4 := ProbeRule{Peer: netip.AddrPortFrom(probeServer4, 8080), Local: probeLocal4, Request: request}
	rule6 := ProbeRule{Peer: netip.AddrPortFrom(probeServer6, 8080), Local: probeLocal6, Request: request}
	tagged := rule4
	tagged.Hop = NextHop{MAC: muxRouter, Ifindex: ingress, Tag: 0x81000064}
	elsewhere := rule6
	elsewhere.Hop = NextHop{MAC: muxRouter, Ifindex: ingress + 1}
	out := map[string]ProbeRule{"IPv4": rule4, "IPv6": rule6, "IPv4 in a VLAN": tagged, "IPv6 by another device": elsewhere}
	for _, encap := range []Encap{EncapIPIP, EncapGUE} {
		for _, r := range []ProbeRule{rule4, rule6} {
			for _, outer := range []netip.Addr{probeServer4, probeServer6} {
				vip, bare := muxVIP4, 40
				if r.Local.Is6() {
					vip, bare = muxVIP6, 60
				}
				tunnel := Tunnel{Outer: outer, Encap: encap, Member: 513, Sources: sources, Hash: 0x123456789abcdef}
				r.Peer = netip.AddrPortFrom(vip, 80)
				var err error
				r.Outer, err = tunnel.Header(r.Local.Is4(), bare)
				must(t, err)
				want, err := tunnel.Header(r.Local.Is4(), bare+len(request))
				must(t, err)
				if got := stretched(r.Outer, len(request)); !bytes.Equal(got, want) {
					t.Fatalf("outer headers %x of %d bytes more are %x, want %x", r.Outer, len(request), got, want)
				}
				out[fmt.Sprintf("tunnel %d of %s to %s", encap, r.Local, outer)] = r
			}
		}
	}
	return out
}

// sentVerdict is how a frame leaves.
func (r *probeRig) sentVerdict() uint32 {
	if r.rule.Hop.Ifindex == ingress {
		return xdpTX
	}
	return xdpRedirect
}
