package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestHostGUE: two members of one endpoint at one host address get what is theirs, by every pair of families, and their
// SYNs are clamped to what GUE leaves.
func TestHostGUE(t *testing.T) {
	e := newHostEnv(t).quiet()
	other4, other6 := "10.20.1.13", "2001:db8:20:1::13"
	e.route(other4, "vm0")
	e.route(other6, "vm0")
	e.apply(
		gue(1, bind(lb.TCP, vip4, host4, dip4, true)), gue(0x1234, bind(lb.TCP, vip4, host4, other4, true)),
		gue(1, bind(lb.TCP, vip6, host6, dip6, true)), gue(0x1234, bind(lb.TCP, vip6, host6, other6, true)),
		gue(1, bind(lb.TCP, vip4, host6, dip4, true)), gue(1, bind(lb.TCP, vip6, host4, dip6, true)),
		gue(1, bind(lb.UDP, vip4, host4, dip4, true)),
	)
	for _, c := range []struct {
		client, vip, source, outer, dip string
		member, mss                     uint16
	}{
		{client4, vip4, source4, host4, dip4, 1, 1416}, {client4, vip4, source4, host4, other4, 0x1234, 1416},
		{client6, vip6, source6, host6, dip6, 1, 1376}, {client6, vip6, source6, host6, other6, 0x1234, 1376},
		{client4, vip4, source6, host6, dip4, 1, 1396}, {client6, vip6, source4, host4, dip6, 1, 1396},
	} {
		in := packet{protocol: lb.TCP, src: c.client, dst: c.vip, sport: 40001, dport: 80, syn: true, options: mssOption(1, 1460)}
		out := in
		out.dst, out.dport, out.options = c.dip, 8080, mssOption(1, c.mss)
		e.expect(fmt.Sprintf("%s by %s to %d", c.vip, c.outer, c.member),
			gueTunnel(t, c.source, c.outer, c.member, in.bytes(t)), verdictRedirect, frame(out.bytes(t)), "in_delivered", "mss_clamped")
	}
	// A checksum in the outer UDP header is not looked at.
	in := packet{protocol: lb.UDP, src: client4, dst: vip4, sport: 1, dport: 53, payload: "q"}
	out := in
	out.dst, out.dport = dip4, 5353
	f := gueTunnel(t, source4, host4, 1, in.bytes(t))
	f[40], f[41] = 0xab, 0xcd
	e.expect("wrong outer checksum", f, verdictRedirect, frame(out.bytes(t)), "in_delivered")
}

// TestHostGUERefuses: what the header must not say, and whose packets it is to refuse.
func TestHostGUERefuses(t *testing.T) {
	e := newHostEnv(t).quiet()
	e.apply(gue(1, bind(lb.TCP, vip4, dip4, dip4, true)), bind(lb.TCP, vip4, host4, dip4, true),
		gue(1, bind(lb.TCP, vip6, host6, dip6, true)))
	good := packet{protocol: lb.TCP, src: client4, dst: vip4, sport: 40005, dport: 80, ack: true, payload: "x"}
	good6 := packet{protocol: lb.TCP, src: client6, dst: vip6, sport: 40005, dport: 80, ack: true, payload: "x"}
	const header = 14 + 20 + 8
	for name, c := range map[string]struct {
		at     int
		v      []byte
		reason string
	}{
		"version 1":               {header, []byte{0x43}, "in_gue_unknown"},
		"version 3":               {header, []byte{0xc3}, "in_gue_unknown"},
		"control message":         {header, []byte{0x23}, "in_gue_unknown"},
		"hlen 0":                  {header, []byte{0}, "in_gue_unknown"},
		"hlen 2":                  {header, []byte{2}, "in_gue_unknown"},
		"hlen 4":                  {header, []byte{4}, "in_gue_unknown"},
		"hlen 31":                 {header, []byte{31}, "in_gue_unknown"},
		"flags":                   {header + 2, []byte{0x80, 0}, "in_gue_unknown"},
		"private flags":           {header + 4, []byte{0x11}, "in_gue_unknown"},
		"protocol TCP":            {header + 1, []byte{6}, "in_gue_unknown"},
		"protocol UDP":            {header + 1, []byte{17}, "in_gue_unknown"},
		"protocol of a tunnel":    {header + 1, []byte{47}, "in_gue_unknown"},
		"octet behind the VNI":    {header + 11, []byte{1}, "in_gue_unknown"},
		"octets behind member":    {header + 14, []byte{0, 1}, "in_gue_unknown"},
		"no member":               {header + 12, []byte{0xff, 0xff}, "in_no_binding"},
		"another member":          {header + 12, []byte{0, 2}, "in_no_binding"},
		"another VNI":             {header + 8, []byte{0, 0, 1}, "in_no_binding"},
		"protocol of IPv6":        {header + 1, []byte{41}, "in_malformed"},
		"UDP length beyond":       {header - 4, []byte{1, 0}, "in_malformed"},
		"UDP length of a header":  {header - 4, []byte{0, 8}, "in_malformed"},
		"UDP length of GUE alone": {header - 4, []byte{0, 24}, "in_malformed"},
		"UDP length cuts packet":  {header - 4, []byte{0, 60}, "in_malformed"},
		"UDP length of nothing":   {header - 4, []byte{0, 0}, "in_malformed"},
		"outer fragment":          {14 + 6, []byte{0x20, 0}, "in_fragment"},
		"inner IHL":               {header + 16, []byte{0x44}, "in_malformed"},
	} {
		f := gueTunnel(t, source4, dip4, 1, good.bytes(t))
		copy(f[c.at:], c.v)
		e.expect(name, f, verdictDrop, nil, c.reason)
	}
	e.expect("bad source", gueTunnel(t, client4, dip4, 1, good.bytes(t)), verdictDrop, nil, "in_bad_source")
	e.expect("IPIP to a GUE member", tunnel(t, source4, dip4, good.bytes(t)), verdictNext, nil, "pass_not_ours")
	e.expect("GUE to an IPIP member", gueTunnel(t, source4, host4, 1, good.bytes(t)), verdictNext, nil, "pass_not_ours")
	e.expect("GUE in GUE", gueTunnel(t, source4, dip4, 1, gueTunnel(t, source4, dip4, 1, good.bytes(t))[14:]), verdictDrop, nil, "in_bad_source")
	e.expect("IPIP in GUE", gueTunnel(t, source4, dip4, 1, tunnel(t, source4, dip4, good.bytes(t))[14:]), verdictDrop, nil, "in_bad_source")
	e.expect("others' port 6080", gueTunnel(t, client4, "10.20.1.99", 1, good.bytes(t)), verdictNext, nil, "pass_not_ours")
	plain := packet{protocol: lb.UDP, src: client4, dst: dip4, sport: 6080, dport: 6081, payload: "x"}
	e.expect("another port", frame(plain.bytes(t)), verdictNext, nil, "pass_not_ours")
	e.expect("good 6", gueTunnel(t, source6, host6, 1, good6.bytes(t)), verdictRedirect, nil, "in_delivered")
	// Cut anywhere, with lengths that know of it.
	whole := gueTunnel(t, source4, dip4, 1, good.bytes(t))
	for n := 14 + 28; n < len(whole); n++ {
		f := bytes.Clone(whole[:n])
		binary.BigEndian.PutUint16(f[16:], uint16(n-14))
		binary.BigEndian.PutUint16(f[38:], uint16(n-34))
		e.expect(fmt.Sprintf("cut to %d", n), f, verdictDrop, nil, "in_malformed")
	}
}

// expect gives a frame to host_in and checks what becomes of it; a nil out is not compared, but a frame that is passed
// must be as it was.
func (e *hostEnv) expect(name string, in []byte, verdict int32, out []byte, reasons ...string) {
	e.t.Helper()
	before := e.reasons(nil)
	v, got := e.run(e.host.objects.HostIn, in)
	r := e.reasons(before)
	if v != verdict || !maps.Equal(r, one(reasons...)) {
		e.t.Errorf("%s: verdict %d, reasons %v, want %d, %v", name, v, r, verdict, reasons)
	}
	checkClasses(e.t, name, v, r)
	if verdict == verdictNext {
		out = in
	}
	if out != nil && !bytes.Equal(got, out) {
		e.t.Errorf("%s: frame\n% x, want\n% x", name, got, out)
	}
}

// answered gives a frame to host_out.
func (e *hostEnv) answered(name string, in []byte, verdict int32, out []byte, reasons ...string) {
	e.t.Helper()
	before := e.reasons(nil)
	v, got := e.run(e.host.objects.HostOut, in)
	r := e.reasons(before)
	if v != verdict || !maps.Equal(r, one(reasons...)) {
		e.t.Errorf("%s: verdict %d, reasons %v, want %d, %v", name, v, r, verdict, reasons)
	}
	checkClasses(e.t, name, v, r)
	if out != nil && !bytes.Equal(got, out) {
		e.t.Errorf("%s: frame\n% x, want\n% x", name, got, out)
	}
}

// checkClasses compares the classes of the reasons that a program of the host counted for one packet with its verdict.
func checkClasses(t testing.TB, name string, verdict int32, counted map[string]uint64) {
	t.Helper()
	for reason := range counted {
		if class := HostReasons().Class(reason); class == ClassDrop && verdict != verdictDrop || class == ClassTX && verdict == verdictDrop {
			t.Errorf("%s: reason %s of class %s with the verdict %d", name, reason, class, verdict)
		}
	}
}
