package dataplane

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// seeded returns randomness that SHUNT_SEED replays.
func seeded(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	if s := os.Getenv("SHUNT_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("SHUNT_SEED: %v", err)
		}
	}
	t.Logf("SHUNT_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// randomPacket is mostly for an endpoint of basicState, and mostly right.
func randomPacket(r *rand.Rand) wire.Packet {
	p := wire.Packet{
		DstMAC: muxSelf, SrcMAC: muxRouter, TOS: uint8(r.Uint32()), TTL: uint8(r.IntN(8) * 9), ID: uint16(r.Uint32()),
		FlowLabel: r.Uint32N(1 << 20), Padding: max(0, r.IntN(60)-50), Flags: uint16(r.IntN(2)) << 14,
	}
	if r.IntN(2) == 0 {
		p.Src, p.Dst = netip.AddrFrom4([4]byte{198, 51, byte(r.Uint32()), byte(r.Uint32())}), muxVIP4
	} else {
		b := muxClient6.As16()
		binary.BigEndian.PutUint64(b[8:], r.Uint64())
		p.Src, p.Dst = netip.AddrFrom16(b), muxVIP6
		for r.IntN(4) == 0 {
			p.Extensions = append(p.Extensions, wire.Options([]uint8{0, 43, 60}[r.IntN(3)], 1+r.IntN(3)))
			p.Extensions[len(p.Extensions)-1].Rest[2] *= uint8(r.IntN(2)) // segments left, in a routing header
		}
	}
	if r.IntN(20) == 0 {
		p.Dst = p.Src
	}
	if r.IntN(20) == 0 { // of the VIPs' prefix, a VIP or not
		b := p.Dst.AsSlice()
		b[len(b)-1] ^= byte(1 + r.IntN(3))
		p.Src, _ = netip.AddrFromSlice(b)
	}
	data := make([]byte, r.IntN(64))
	source, port := uint16(r.Uint32()), []uint16{80, 53, 81, 82, 83, 84}[r.IntN(6)]
	switch r.IntN(8) {
	case 0:
		p.Payload = wire.Echo{Reply: r.IntN(4) == 0, ID: source, Data: data}
	case 1, 2:
		p.Payload = wire.UDP{SrcPort: source, DstPort: port, Data: data}
	case 3:
		p.Payload = wire.Raw{Number: uint8(r.Uint32()), Data: data}
	default:
		options := make([]byte, r.IntN(11)*4)
		for i := range options {
			options[i] = []byte{1, 1, 2, 4, 8, 10, 0, 3, byte(r.Uint32())}[r.IntN(9)]
		}
		p.Payload = wire.TCP{SrcPort: source, DstPort: port, Flags: uint8(r.Uint32()), Options: options, Data: data}
	}
	return p
}

// randomFrame is a random packet's frame, one time in two with a few bytes changed or cut off.
func randomFrame(r *rand.Rand) []byte {
	frame := randomPacket(r).Frame()
	if r.IntN(2) == 0 {
		return frame
	}
	for range 1 + r.IntN(3) {
		frame[r.IntN(min(len(frame), 90))] = byte(r.Uint32())
	}
	if r.IntN(4) != 0 {
		frame = with(frame, func([]byte) {})
	}
	if r.IntN(8) == 0 {
		frame = frame[:max(14, r.IntN(len(frame)))]
	}
	return frame
}

// TestRandomPackets compares program and model over packets that are right, nearly right and wrong.
func TestRandomPackets(t *testing.T) {
	f, r := basicFixture(t), seeded(t)
	f.setAlive(MemberAlive{f.model.state.Endpoints[0].Key, 1, false}, MemberAlive{f.model.state.Endpoints[1].Key, 0, false})
	expected := f.reasonsNow()
	for range 150_000 {
		frame := randomFrame(r)
		f.model.noted = nil
		want := f.model.walk(frame)
		verdict, out := f.run(frame)
		if verdict != want.verdict || !bytes.Equal(out, want.frame) {
			t.Fatalf("frame %x:\ngot  verdict %d, %x\nwant verdict %d, %x (%s)", frame, verdict, out, want.verdict, want.frame, want.reason)
		}
		for _, counted := range append(f.model.noted, want.reason) {
			expected[counted]++
		}
		if r.IntN(4) == 0 {
			f.setJiffies(f.model.policy.now + 1)
		}
	}
	for name, n := range f.reasonsNow() {
		if n != expected[name] {
			t.Errorf("reason %s: counted %d, the model %d", name, n, expected[name])
		}
	}
}

// FuzzMux compares program and model on frames that the fuzzer makes.
func FuzzMux(f *testing.F) {
	for _, c := range slices.Concat(forwardCases(), echoCases(), malformedCases()) {
		f.Add(c.frame)
	}
	m := newMuxFixture(f)
	s := basicState()
	m.apply(s)
	hops := hopsTo(s)
	delete(hops, s.Endpoints[6].Members[0].Outer)
	m.setHops(hops)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > 3000 {
			return // the kernel's test runner takes no others
		}
		fixture := *m
		fixture.t = t
		fixture.check(frame)
	})
}

// xdpContext is struct xdp_md as the test runner takes it.
type xdpContext struct{ Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32 }

func TestNoHeadroom(t *testing.T) {
	f := basicFixture(t)
	const meta = 200 // in front of the frame: of 256 bytes of headroom too few are left for a header
	data := append(make([]byte, meta), tcp4(80).Frame()...)
	if _, err := f.mux.Program().Run(runOptions(data, xdpContext{Data: meta, DataEnd: uint32(len(data))})); err != nil {
		t.Fatal(err)
	}
	if n := f.reasonsNow()["no_headroom"]; n != 1 {
		t.Errorf("no_headroom counted %d times: %v", n, f.reasonsNow())
	}
}

// TestInternal breaks the tables as only a bug could.
func TestInternal(t *testing.T) {
	f := basicFixture(t)
	for i := range f.mux.memory.members {
		if w := f.mux.memory.members[i]; w != 0 {
			f.mux.memory.members[i] = w | 0xffffffff
		}
	}
	if verdict, _ := f.run(tcp4(80).Frame()); verdict != xdpDrop {
		t.Errorf("verdict %d", verdict)
	}
	if n := f.reasonsNow()["internal"]; n != 1 {
		t.Errorf("internal counted %d times: %v", n, f.reasonsNow())
	}
}

// TestEveryReasonIsTested keeps the list of reasons and the packet tests together.
func TestEveryReasonIsTested(t *testing.T) {
	tested := map[string]bool{
		"fib_fallback": true, // TestMuxAsksTheKernel
		"no_headroom":  true, // TestNoHeadroom
		"internal":     true, // TestInternal
		"ping_limited": true, // TestLimitedAnswers
		"ptb_limited":  true, // the same
		// Counted beside, in TestEdgePackets.
		"icmp_error_forwarded": true, "fragment_followed": true,
		"fragment_limited": true, // TestFragmentShares
		"snat_forwarded":   true, // counted beside, in TestSNATPackets

		// Counted beside, in TestQUICUnroutable, TestQUICServerIsGone and TestQUICOddDatagrams.
		"quic_unroutable": true, "quic_invalid": true, "quic_malformed": true,

		"cookie_absent":  true, // TestCookieAbsent
		"cookie_invalid": true, // TestCookieInvalid

		"flow_table_full": true, // TestSYNAndACKFlood
		"flow_displaced":  true, // TestFlowTableShares
		"flow_moved":      true, // TestDeadMemberLosesItsFlows

		"nat_replied":    true, // TestNATBothWays
		"nat_fragment":   true, // TestNATRefused
		"nat_full":       true, // TestNATNoRoom
		"nat_no_address": true, // TestNATNoAddress
		"nat_unknown":    true, // TestNATRefused
		"nat_expired":    true, // counted by sweeps, in TestNATIdle
		"nat_displaced":  true, // TestNATFlood

		"track_full":      true, // TestTrackFull
		"track_displaced": true, // TestTrackDisplaced

		"rate_limited":     true, // TestPacketLimit
		"new_flow_limited": true, // TestNewFlowLimit
		"source_denied":    true, // TestSources

		// TestProbeHTTP, TestProbeUnreachable, TestProbeWithoutAWay
		"probe_asked": true, "probe_ended": true, "probe_reset": true, "probe_ignored": true, "probe_unreachable": true, "probe_no_room": true,
	}
	for _, c := range slices.Concat(forwardCases(), echoCases(), malformedCases(), edgeCases(), snatCases()) {
		tested[c.reason] = true
	}
	for _, r := range MuxReasons().All {
		if !tested[r.Name] {
			t.Errorf("no packet test expects reason %s", r.Name)
		}
	}
}

// TestRedirect: another interface than that of arrival.
func TestRedirect(t *testing.T) {
	f := newMuxFixture(t)
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{endpointOf(muxVIP4, lb.TCP, 80, "10.20.1.11")}}
	f.apply(s)
	f.setHops(map[netip.Addr]NextHop{s.Endpoints[0].Members[0].Outer: {MAC: muxRouter, Ifindex: 7}})
	if got := f.check(tcp4(80).Frame()); got.verdict != xdpRedirect {
		t.Errorf("the model says %d", got.verdict)
	}
}

// TestBounceRedirects: with Redirect, what would leave by XDP_TX is redirected, bytes and reasons being the same.
func TestBounceRedirects(t *testing.T) {
	f := newMuxFixtureWith(t, MuxOptions{Redirect: true})
	s := basicState()
	f.apply(s)
	f.setHops(hopsTo(s))
	ping := tcp4(0)
	ping.Payload = wire.Echo{ID: 1, Data: []byte("x")}
	for _, frame := range [][]byte{tcp4(80).Frame(), tcp6(80).Frame(), ping.Frame()} {
		want := f.model.walk(frame)
		if verdict, out := f.run(frame); want.verdict != xdpTX || verdict != xdpRedirect || !bytes.Equal(out, want.frame) {
			t.Errorf("frame %x: verdict %d, %x; wanted a redirect of %x", frame, verdict, out, want.frame)
		}
	}
}
