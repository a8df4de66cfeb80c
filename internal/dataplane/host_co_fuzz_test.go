package dataplane

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// TestHandshakesOfRandomSegments: whatever a segment's headers and options are, an answer is a right packet to its sender, and what is the kernel's has right sums.
func TestHandshakesOfRandomSegments(t *testing.T) {
	const next, drop, redirect = -1, 2, 7
	e, r := newCOEnv(t), seeded(t)
	must(t, e.co.Apply(COSetup{SACK: true, WindowScaling: true}, []COEndpoint{coEndpointOf(coVIP4, 80), coEndpointOf(coVIP6, 80)}))
	e.serve(coVIP4, 80, false)
	e.serve(coVIP6, 80, false)
	answered := 0
	for round := range 30_000 {
		client, vip, ethertype := netip.MustParseAddrPort(coClient4+":40000"), netip.MustParseAddrPort(coVIP4+":80"), byte(0)
		if r.IntN(2) == 0 {
			client, vip, ethertype = netip.AddrPortFrom(netip.MustParseAddr(coClient6), 40000), netip.AddrPortFrom(netip.MustParseAddr(coVIP6), 80), 0xdd
		}
		flags := []byte{2, 2, 2, 0xc2, 16, byte(r.Uint32())}[r.IntN(6)]
		options := fuzzOptions(r, r.Uint32(), r.Uint32())
		ip, at := fuzzSegment(r, client, vip, flags, options, make([]byte, max(0, r.IntN(12)-8)))
		frame := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}, ip...)
		if ethertype != 0 {
			frame[12], frame[13] = 0x86, ethertype
		}
		if len(frame) < 60 {
			frame = append(frame, make([]byte, 60-len(frame))...)
		}
		verdict, out, _ := e.give(frame)
		out = out[14:]
		switch verdict {
		case next:
			if !sumOK(out[:len(ip)], at) {
				t.Fatalf("round %d: sums of\n% x are wrong in\n% x", round, ip, out)
			}
		case drop:
		case redirect:
			answered++
			hdr := 20
			src, dst := out[12:16], out[16:20]
			length := int(binary.BigEndian.Uint16(out[2:]))
			if out[0]>>4 == 6 {
				hdr, src, dst, length = 40, out[8:24], out[24:40], 40+int(binary.BigEndian.Uint16(out[4:]))
			} else if out[0] != 0x45 {
				t.Fatalf("round %d: the answer to\n% x has options of IP:\n% x", round, ip, out)
			}
			s, _ := netip.AddrFromSlice(src)
			d, _ := netip.AddrFromSlice(dst)
			if length != hdr+40 || len(out) != length || s != vip.Addr() || d != client.Addr() || !sumOK(out, hdr) || out[0]>>4 == 6 && out[6] != 6 {
				t.Fatalf("round %d: %d bytes from %s to %s, sums right: %v: the answer to\n% x is\n% x", round, length, s, d, sumOK(out, hdr), ip, out)
			}
		default:
			t.Fatalf("round %d: verdict %d", round, verdict)
		}
	}
	if answered == 0 {
		t.Error("no SYN was answered")
	}
}
