package dataplane

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// fuzzOptions are options of a segment: mostly some that are known, of right and wrong lengths, with timestamps that are now and then those given.
func fuzzOptions(r *rand.Rand, value, echo uint32) []byte {
	if r.IntN(4) == 0 {
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{1, 1, 8, 10}, value), echo)
	}
	var out []byte
	for r.IntN(6) != 0 {
		switch r.IntN(9) {
		case 0, 1, 2:
			out = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(append(out, 8, 10), value), echo)
		case 3, 4:
			out = append(out, 1)
		case 5:
			kind := []byte{2, 3, 4, 5, 8, 19, 28, 29, 30, 34, 253}[r.IntN(11)]
			out = append(out, kind, []byte{0, 1, 2, 3, 4, 10, 18, 255, byte(r.Uint32())}[r.IntN(9)])
		case 6:
			out = append(out, 30, 4, byte(r.IntN(4))<<4, byte(r.Uint32()))
		case 7:
			out = append(out, 5, 10, 1, 2, 3, 4, 5, 6, 7, 8)
		default:
			out = append(out, byte(r.Uint32()))
		}
	}
	for len(out)%4 != 0 {
		out = append(out, byte(r.IntN(2)))
	}
	return out[:min(len(out), 40)]
}

// fuzzSegment is a TCP segment in an IP packet whose sums are right, and where its transport header begins; of IPv6 now and then with extension headers.
func fuzzSegment(r *rand.Rand, src, dst netip.AddrPort, flags byte, options, data []byte) (ip []byte, at int) {
	tcp := make([]byte, 20, 20+len(options)+len(data))
	binary.BigEndian.PutUint16(tcp, src.Port())
	binary.BigEndian.PutUint16(tcp[2:], dst.Port())
	binary.BigEndian.PutUint32(tcp[4:], r.Uint32())
	binary.BigEndian.PutUint32(tcp[8:], r.Uint32())
	tcp[12], tcp[13] = byte(5+len(options)/4)<<4, flags
	tcp = append(append(tcp, options...), data...)
	pseudo := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, 6, byte(len(tcp)>>8), byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], ^coSum(append(pseudo, tcp...)))
	if src.Addr().Is4() {
		ip = make([]byte, 20+4*max(0, r.IntN(12)-8))
		for i := 20; i < len(ip); i++ {
			ip[i] = 1
		}
		ip[0], ip[8], ip[9] = 0x40|byte(len(ip)/4), byte(2+r.IntN(200)), 6
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(tcp)))
		copy(ip[12:], src.Addr().AsSlice())
		copy(ip[16:], dst.Addr().AsSlice())
		binary.BigEndian.PutUint16(ip[10:], ^coSum(ip))
		return append(ip, tcp...), len(ip)
	}
	ip = make([]byte, 40)
	ip[0], ip[6], ip[7] = 0x60, 6, byte(2+r.IntN(200))
	copy(ip[8:], src.Addr().AsSlice())
	copy(ip[24:], dst.Addr().AsSlice())
	if r.IntN(4) == 0 {
		ip[6] = 60
		ip = append(ip, 6, 0, 1, 4, 0, 0, 0, 0)
	}
	binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40+len(tcp)))
	return append(ip, tcp...), len(ip)
}

// sumOK tells whether the sums of a TCP segment in an IP packet are right.
func sumOK(ip []byte, at int) bool {
	tcp := ip[at:]
	if ip[0]>>4 == 4 {
		return coSum(ip[:at:at]) == 0xffff && coSum(append(append(bytes.Clone(ip[12:20]), 0, 6, byte(len(tcp)>>8), byte(len(tcp))), tcp...)) == 0xffff
	}
	return coSum(append(append(bytes.Clone(ip[8:40]), 0, 6, byte(len(tcp)>>8), byte(len(tcp))), tcp...)) == 0xffff
}

// mayChange are the bytes of options that a host may change: of the first timestamps, as RFC 7323 has them, value or echo, and of a SYN the MSS and the flags of MP_CAPABLE.
func mayChange(o []byte, in, syn bool) (may [40]bool) {
	seen := false
	for i := 0; i < len(o) && o[i] != 0; {
		if o[i] == 1 {
			i++
			continue
		}
		if i+1 >= len(o) || o[i+1] < 2 || i+int(o[i+1]) > len(o) {
			return may
		}
		switch n := int(o[i+1]); {
		case o[i] == 8 && n == 10 && !seen:
			seen = true
			at := i + 2
			if in {
				at += 4
			}
			may[at], may[at+1], may[at+2], may[at+3] = true, true, true, true
		case o[i] == 2 && n == 4 && syn:
			may[i+2], may[i+3] = true, true
		case o[i] == 30 && n >= 4 && syn && !in:
			may[i+3] = true
		}
		i += int(o[i+1])
	}
	return may
}

// TestHostCookieRandomOptions: whatever a segment's options are, its sums stay right, and nothing changes but addresses, ports, time to live, one echo or value, an
// MSS, and the flag of MP_CAPABLE.
func TestHostCookieRandomOptions(t *testing.T) {
	e, r := newCookieEnv(t), seeded(t)
	for round := range 60_000 {
		port := uint16(20000 + r.IntN(40))
		f := e.baked4(port)
		if r.IntN(2) == 0 {
			f = e.baked6(port)
		}
		client, vip := netip.AddrPortFrom(netip.MustParseAddr(f.client), port), netip.AddrPortFrom(netip.MustParseAddr(f.vip), 80)
		dip := netip.AddrPortFrom(netip.MustParseAddr(f.dip), 8080)
		value, echo := r.Uint32(), r.Uint32()
		if r.IntN(2) == 0 {
			echo = uint32(f.cookie(1))<<15 | r.Uint32()&0x80007fff
		}
		flags := []byte{2, 18, 16, 16, 16, 24, 17, 4, 20, byte(r.Uint32())}[r.IntN(10)]
		options, data := fuzzOptions(r, value, echo), make([]byte, r.IntN(9))
		in := r.IntN(2) == 0
		from, to := client, vip
		if !in {
			from, to = dip, client
		}
		ip, at := fuzzSegment(r, from, to, flags, options, data)
		var verdict int32
		var out []byte
		if in {
			verdict, out = e.run(e.host.objects.HostIn, tunnel(t, f.source, f.dip, ip))
		} else {
			verdict, out = e.run(e.host.objects.HostOut, frame(ip))
		}
		if verdict != verdictRedirect && verdict != verdictNext && verdict != 2 {
			t.Fatalf("round %d: verdict %d of % x", round, verdict, ip)
		}
		if in && verdict != verdictRedirect || !in && verdict != verdictNext {
			continue
		}
		if len(out) != 14+len(ip) {
			t.Fatalf("round %d in %v: %d bytes of\n% x became\n% x", round, in, len(ip), ip, out)
		}
		got := out[14:]
		if !sumOK(got, at) {
			t.Fatalf("round %d in %v: sums of\n% x are wrong in\n% x", round, in, ip, got)
		}
		if !bytes.Equal(got[at+4:at+16], ip[at+4:at+16]) || !bytes.Equal(got[at+20+len(options):], ip[at+20+len(options):]) {
			t.Fatalf("round %d in %v: more changed than may:\n% x\n% x", round, in, ip, got)
		}
		may := mayChange(options, in, flags&2 != 0)
		for i := range options {
			if got[at+20+i] != ip[at+20+i] && !may[i] {
				t.Fatalf("round %d in %v flags %x: options changed:\n% x\n% x", round, in, flags, ip[at+20:], got[at+20:])
			}
		}
	}
}
