package dataplane

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/wire"
)

func TestProbeTCP(t *testing.T) {
	f := basicFixture(t)
	for name, rule := range probeWays(t, nil) {
		t.Run(name, func(t *testing.T) {
			f.t = t
			if rule.Hop == (NextHop{}) {
				rule.Hop = NextHop{MAC: muxRouter, Ifindex: ingress}
			}
			r := newProbeRig(t, f, rule)
			tx := r.sentVerdict()
			synAck := r.packet(wire.TCP{Seq: 1e9, Ack: r.isn + 1, Flags: wire.SYN | wire.ACK, Options: []byte{2, 4, 5, 180, 1, 1, 4, 2}})
			rst := r.sent(wire.TCP{Seq: r.isn + 1, Flags: wire.RST})
			answered := ProbeResult{State: ProbeAnswered}
			r.expect("SYN-ACK", synAck.Frame(), tx, rst, "probe_ended", answered)
			r.expect("SYN-ACK again", synAck.Frame(), tx, rst, "probe_ended", answered)

			r.again()
			refusal := r.packet(wire.TCP{Ack: r.isn + 1, Flags: wire.RST | wire.ACK, DstPort: probePort + 3}).Frame()
			refused := ProbeResult{State: ProbeRefused, Attempt: 3}
			r.expect("RST", refusal, xdpDrop, refusal, "probe_reset", refused)
			r.expect("SYN-ACK after all", synAck.Frame(), tx, rst, "probe_ended", refused)
		})
	}
}

func TestProbeHTTP(t *testing.T) {
	f := basicFixture(t)
	for name, rule := range probeWays(t, probeText) {
		t.Run(name, func(t *testing.T) {
			f.t = t
			if rule.Hop == (NextHop{}) {
				rule.Hop = NextHop{MAC: muxRouter, Ifindex: ingress}
			}
			r := newProbeRig(t, f, rule)
			tx := r.sentVerdict()
			behind := r.isn + 1 + uint32(len(probeText))
			synAck := r.packet(wire.TCP{Seq: 0xffffffff, Ack: r.isn + 1, Flags: wire.SYN | wire.ACK, Options: []byte{2, 4, 5, 180}}).Frame()
			request := r.sent(wire.TCP{Seq: r.isn + 1, Ack: 0, Flags: wire.ACK | wire.PSH, Data: probeText})
			rst := r.sent(wire.TCP{Seq: behind, Flags: wire.RST})
			answer := func(data string, flags uint8) []byte {
				return r.packet(wire.TCP{Seq: 0, Ack: behind, Flags: wire.ACK | flags, Data: []byte(data)}).Frame()
			}
			connected := ProbeResult{State: ProbeConnected}
			r.expect("SYN-ACK", synAck, tx, request, "probe_asked", connected)
			r.expect("SYN-ACK again", synAck, tx, request, "probe_asked", connected)
			pure := answer("", 0)
			r.expect("pure ACK", pure, xdpDrop, pure, "probe_ignored", connected)
			ok := ProbeResult{State: ProbeStatus, Status: 200}
			r.expect("200", answer("HTTP/1.1 200 OK\r\n", wire.PSH), tx, rst, "probe_ended", ok)
			r.expect("200 again, with FIN", answer("HTTP/1.1 503 No\r\n", wire.FIN), tx, rst, "probe_ended", ok)
			r.expect("SYN-ACK too late", synAck, tx, r.sent(wire.TCP{Seq: r.isn + 1, Flags: wire.RST}), "probe_ended", ok)

			for data, want := range map[string]ProbeResult{
				"HTTP/1.0 503\r\n": {State: ProbeStatus, Status: 503},
				"HTTP/1.1 404\n":   {State: ProbeStatus, Status: 404},
				"HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Filler: 0123456789\r\n", 60): {State: ProbeStatus, Status: 200},
				"HTTP/1.1 200":              {State: ProbeOdd},
				"HTTP/1.1 2000":             {State: ProbeOdd},
				"HTTP/1.1 100 Continue\r\n": {State: ProbeOdd},
				"HTTP/2.0 200 OK\r\n":       {State: ProbeOdd},
				"HTTP/1.2 200 OK\r\n":       {State: ProbeOdd},
				"HTTP/1.1  200 OK\r\n":      {State: ProbeOdd},
				"HTTP/1.1 20x OK\r\n":       {State: ProbeOdd},
				"http/1.1 200 OK\r\n":       {State: ProbeOdd},
				"H":                         {State: ProbeOdd},
				"SSH-2.0-OpenSSH_9\r\n":     {State: ProbeOdd},
			} {
				r.again()
				r.expect(data, answer(data, wire.PSH), tx, rst, "probe_ended", want)
			}
			r.again()
			greeting := r.packet(wire.TCP{Ack: r.isn + 1, Flags: wire.ACK, Data: []byte("220 smtp\r\n")}).Frame()
			r.expect("data before the request", greeting, tx, r.sent(wire.TCP{Seq: r.isn + 1, Flags: wire.RST}), "probe_ended", ProbeResult{State: ProbeOdd})
			r.again()
			r.expect("FIN", answer("", wire.FIN), tx, rst, "probe_ended", ProbeResult{State: ProbeClosed})
			r.again()
			reset := r.packet(wire.TCP{Ack: behind, Flags: wire.RST | wire.ACK}).Frame()
			r.expect("RST later", reset, xdpDrop, reset, "probe_reset", ProbeResult{State: ProbeBroken})
			r.again()
			r.expect("SYN-ACK", synAck, tx, request, "probe_asked", connected)
			reset = r.packet(wire.TCP{Ack: r.isn + 1, Flags: wire.RST | wire.ACK}).Frame()
			r.expect("RST of a connection that there was", reset, xdpDrop, reset, "probe_reset", ProbeResult{State: ProbeBroken})
		})
	}
}

// TestProbesAreOffUntilAskedFor: without rules the walk is as before, tagged or not.
func TestProbesAreOffUntilAskedFor(t *testing.T) {
	f := basicFixture(t)
	frame := wire.Packet{DstMAC: muxSelf, SrcMAC: muxRouter, Src: probeServer4, Dst: probeLocal4,
		Payload: wire.TCP{SrcPort: 80, DstPort: 61500, Ack: 1, Flags: wire.SYN | wire.ACK}}.Frame()
	for _, b := range [][]byte{frame, tagged(frame, 0x81000064)} {
		if got := f.check(b); got.reason != "pass_not_ours" {
			t.Errorf("the model says %s", got.reason)
		}
	}
}

// TestTunnelHeaderIsTheMuxs compares with the model of the walk, which is compared with the program.
func TestTunnelHeaderIsTheMuxs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inner4, gue := rapid.Bool().Draw(t, "inner4"), rapid.Bool().Draw(t, "gue")
		outer := rapid.SampledFrom([]netip.Addr{probeServer4, probeServer6}).Draw(t, "outer")
		hash, member := rapid.Uint64().Draw(t, "hash"), rapid.Uint16Max(4095).Draw(t, "member")
		length := rapid.IntRange(40, 1200).Draw(t, "length")
		m := &muxModel{state: MuxState{TunnelSources: sources}}
		p := modelPacket{dst: muxVIP6, packet: make([]byte, length)}
		if inner4 {
			p.dst = muxVIP4
		}
		tunnel := Tunnel{Outer: outer, Member: member, Sources: sources, Hash: hash}
		e := MuxEndpoint{}
		if gue {
			e.Encap, tunnel.Encap = EncapGUE, EncapGUE
		}
		got, err := tunnel.Header(inner4, length)
		if err != nil {
			t.Fatal(err)
		}
		if want := m.outer(p, e, MuxMember{ID: member, Outer: outer}, hash); !bytes.Equal(got, want) {
			t.Fatalf("got %x, want %x", got, want)
		}
	})
	if _, err := (Tunnel{Outer: probeServer6, Sources: sources[:1]}).Header(true, 40); err == nil {
		t.Error("a tunnel without a source of its family")
	}
}
