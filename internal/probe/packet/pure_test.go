package packet

import (
	"bytes"
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/wire"
)

// TestFramesAreWires compares frames with the codec of internal/wire.
func TestFramesAreWires(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mac := func(name string) [6]byte { return [6]byte(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, name)) }
		l := link{to: mac("to"), from: mac("from"), tag: rapid.SampledFrom([]uint32{0, 0x81000064}).Draw(t, "tag")}
		local, peer := netip.MustParseAddr("10.1.2.3"), netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "peer")))
		if rapid.Bool().Draw(t, "v6") {
			local, peer = netip.MustParseAddr("2001:db8::1"), netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "peer6")))
		}
		var outer []byte
		switch rapid.IntRange(0, 2).Draw(t, "outer") {
		case 1:
			outer = append([]byte{0x45}, bytes.Repeat([]byte{7}, 19)...)
		case 2:
			outer = append([]byte{0x60}, bytes.Repeat([]byte{7}, 63)...)
		}
		port, peerPort := rapid.Uint16().Draw(t, "port"), rapid.Uint16().Draw(t, "peerPort")
		seq, flags := rapid.Uint32().Draw(t, "seq"), rapid.SampledFrom([]uint8{wire.SYN, wire.RST}).Draw(t, "flags")
		got := template(l, outer, local, netip.AddrPortFrom(peer, peerPort))
		if outer == nil && rapid.Bool().Draw(t, "plain") {
			got = bytes.Repeat([]byte{0xee}, frameMax)
			got = got[:plain(got, l, local, netip.AddrPortFrom(peer, peerPort))]
		}
		patch(got, port, seq, flags)

		p := wire.Packet{DstMAC: l.to, SrcMAC: l.from, Src: local, Dst: peer,
			Payload: wire.TCP{SrcPort: port, DstPort: peerPort, Seq: seq, Flags: flags, Window: dataplane.ProbeWindow}}
		if local.Is4() {
			p.Flags = 0x4000
		}
		frame := p.Frame()
		kind := frame[12:14]
		if len(outer) > 0 && outer[0]>>4 == 4 {
			kind = []byte{8, 0}
		} else if len(outer) > 0 {
			kind = []byte{0x86, 0xdd}
		}
		var tag []byte
		if l.tag != 0 {
			tag = []byte{0x81, 0, 0, 0x64}
		}
		want := slices.Concat(frame[:12], tag, kind, outer, frame[14:])
		// Both zeros of one's complement are correct.
		sum := len(want) - 4
		if bytes.Equal(got[sum:sum+2], []byte{0xff, 0xff}) && bytes.Equal(want[sum:sum+2], []byte{0, 0}) {
			want[sum], want[sum+1] = 0xff, 0xff
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("got  %x\nwant %x", got, want)
		}
		if len(got) > frameMax {
			t.Fatalf("%d bytes", len(got))
		}
	})
}

// TestRoundsComeBack checks that an acknowledgement number, from the SYN up to the end of the
// longest request, yields the target's number.
func TestRoundsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number, key := rapid.Uint32Max(1<<18-1).Draw(t, "number"), dataplane.ProbeKey(rapid.Uint64Max(1<<63-1).Draw(t, "key"))
		before := newRound(number, key, rapid.Uint64().Draw(t, "before"), round{})
		random := rapid.SampledFrom([]uint64{0, 1<<64 - 1, rapid.Uint64().Draw(t, "random")}).Draw(t, "which")
		r := newRound(number, key, random, before)
		if r.isn == before.isn {
			t.Fatal("a round has the number of the one before")
		}
		if r.port < dataplane.ProbePortFirst || int(r.port)+dataplane.ProbeAttempts-1 > 65535 || attempts > dataplane.ProbeAttempts {
			t.Fatalf("port %d", r.port)
		}
		sent := rapid.Uint32Max(uint32(dataplane.ProbeRequestMax)).Draw(t, "sent")
		if got := key.Number(r.isn + sent); got != number {
			t.Fatalf("number %d comes back as %d", number, got)
		}
	})
}

// TestSchedule simulates a probe without an answer, to the nanosecond of each check.
func TestSchedule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timeout := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(time.Minute)).Draw(t, "timeout"))
		connected := rapid.Bool().Draw(t, "connected")
		sent, age, looks := 1, time.Duration(0), 0
		var at []time.Duration
		for age < timeout {
			if again, ok := retryAt(timeout, sent, connected); ok && age >= again {
				at = append(at, age)
				sent++
				continue
			}
			next := lookAt(age, timeout, sent, connected)
			if next <= age || next > timeout {
				t.Fatalf("at %v looked at again at %v of %v", age, next, timeout)
			}
			age = next
			if looks++; looks > 200 {
				t.Fatal("looked at too often")
			}
		}
		want := []time.Duration{timeout / 4, timeout / 2}
		if connected {
			want = []time.Duration{timeout / 2, timeout / 4 * 3, timeout / 8 * 7}
		}
		if !slices.Equal(at, want) {
			t.Fatalf("asked again at %v, want %v", at, want)
		}
	})
}

// TestWheel compares the wheel with a sorted list.
func TestWheel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type item struct {
			at int64
			id uint32
		}
		var w wheel
		var all []item
		now, ids := int64(rapid.IntRange(0, 1e9).Draw(t, "begin")), uint32(0)
		w.now = now / millisecond
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			for range rapid.IntRange(0, 5).Draw(t, "adds") {
				at := now + rapid.Int64Range(0, 3000*millisecond).Draw(t, "at")
				w.add(entry{id: ids}, at)
				all = append(all, item{at, ids})
				ids++
			}
			slices.SortFunc(all, func(a, b item) int { return cmp.Compare(a.at, b.at) })
			if next, ok := w.next(); ok != (len(all) > 0) {
				t.Fatalf("next %v, %v with %d entries", next, ok, len(all))
			} else if ok && next > max(all[0].at, now)+2*millisecond {
				t.Fatalf("next %d, the first is due at %d", next, all[0].at)
			}
			now += rapid.Int64Range(0, 700*millisecond).Draw(t, "pass")
			w.due(now, func(e entry) {
				i := slices.IndexFunc(all, func(x item) bool { return x.id == e.id })
				if i < 0 {
					t.Fatalf("entry %d comes twice", e.id)
				}
				if all[i].at > now {
					w.add(e, all[i].at) // far ahead: it fires early
					return
				}
				all = slices.Delete(all, i, i+1)
			})
			for _, x := range all {
				if x.at+millisecond < now {
					t.Fatalf("entry due at %d is not out at %d", x.at, now)
				}
			}
		}
	})
}

// TestAStallIsNoSilence checks that after any stall the remaining SYNs are sent and get their time.
func TestAStallIsNoSilence(t *testing.T) {
	const timeout = 800 * time.Millisecond
	for _, c := range []struct {
		age, last time.Duration
		sent      int
		connected bool
		want      bool
	}{
		{timeout, timeout / 2, 3, false, true},
		{timeout - 1, timeout / 2, 3, false, false},
		{timeout, timeout, 1, false, false},
		{timeout + timeout/2, timeout / 2, 2, false, false},
		{timeout + timeout/2, timeout/8 - 1, 3, false, false},
		{timeout + timeout/2, timeout / 8, 3, false, true},
		{timeout, timeout / 8, 3, true, false},
		{timeout, timeout / 8, 4, true, true},
		{2 * timeout, 0, 1, false, true},
	} {
		if got := over(c.age, c.last, timeout, c.sent, c.connected); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestVerdicts(t *testing.T) {
	of := func(s dataplane.ProbeState, status uint16) outcome {
		return outcome{result: dataplane.ProbeResult{State: s, Status: status}, sent: 3, timeout: 500 * time.Millisecond, own: true}
	}
	with := func(o outcome, change func(*outcome)) outcome { change(&o); return o }
	for _, c := range []struct {
		o       outcome
		good    lb.StatusSet
		verdict probe.Verdict
		words   string
	}{
		{of(dataplane.ProbeAnswered, 0), "", probe.Good, "connected"},
		{of(dataplane.ProbeStatus, 204), "200-399", probe.Good, "status 204"},
		{of(dataplane.ProbeStatus, 503), "200-399", probe.Bad, "status 503"},
		{of(dataplane.ProbeStatus, 503), "200,503", probe.Good, "status 503"},
		{of(dataplane.ProbeStatus, 204), "200", probe.Bad, "status 204"},
		{of(dataplane.ProbeOdd, 0), "200", probe.Unsure, "connected, but the answer begins with no whole status line"},
		{of(dataplane.ProbeStuck, 0), "200", probe.Unsure, "connected, but the device has no room for the request"},
		{of(dataplane.ProbeClosed, 0), "200", probe.Bad, "connected, but closed without an answer"},
		{of(dataplane.ProbeRefused, 0), "200", probe.Bad, "connection refused"},
		{of(dataplane.ProbeBroken, 0), "200", probe.Bad, "connected, but reset"},
		{of(dataplane.ProbeConnected, 0), "200", probe.Bad, "connected, but no bytes within 500 ms"},
		{of(dataplane.ProbeUnreachable, 0), "200", probe.Bad, "host unreachable"},
		{of(dataplane.ProbeSilent, 0), "", probe.Bad, "no answer to three SYNs within 500 ms"},
		{with(of(dataplane.ProbeSilent, 0), func(o *outcome) { o.own, o.sent = false, 1 }), "", probe.Unsure, "no answer to one SYN within 500 ms"},
	} {
		v, words := verdict(c.o, c.good)
		if v != c.verdict || words != c.words {
			t.Errorf("%+v: got %v %q, want %v %q", c.o, v, words, c.verdict, c.words)
		}
	}
}

func TestRequests(t *testing.T) {
	at := netip.MustParseAddrPort("[2001:db8::1]:8080")
	good := lb.Check{Kind: lb.CheckHTTP, Path: "/healthz?deep=1", Headers: "X-A: 1\nUser-Agent: me"}
	good.SetDefaults()
	for _, c := range []struct {
		change    func(*lb.Check)
		want, err string
	}{
		{func(*lb.Check) {}, "GET /healthz?deep=1 HTTP/1.1\r\nHost: [2001:db8::1]:8080\r\nX-A: 1\r\nUser-Agent: me\r\nAccept: */*\r\nConnection: close\r\n\r\n", ""},
		{func(c *lb.Check) { c.Method, c.Host, c.Headers = "HEAD", "www", "" }, "HEAD /healthz?deep=1 HTTP/1.1\r\nHost: www\r\nUser-Agent: shunt\r\nAccept: */*\r\nConnection: close\r\n\r\n", ""},
		{func(c *lb.Check) { *c = lb.Check{Kind: lb.CheckTCP} }, "", ""},
		{func(c *lb.Check) { *c = lb.Check{Kind: lb.CheckTCP, Send: "x"} }, "", "send, expect: not by packets"},
		{func(c *lb.Check) { c.Kind = lb.CheckDNS }, "", `kind: "dns": not by packets`},
		{func(c *lb.Check) { c.Engine = lb.EngineSocket }, "", `engine: "socket": not by packets`},
		{func(c *lb.Check) { c.TLS = true }, "", "tls: not by packets"},
		{func(c *lb.Check) { c.Version = lb.HTTP2 }, "", `version: "2": not by packets`},
		{func(c *lb.Check) { c.Body = "ok" }, "", "body: not by packets"},
		{func(c *lb.Check) { c.Method = "POST" }, "", `method: "POST": not by packets`},
		{func(c *lb.Check) { c.Headers = "connection: keep-alive" }, "", "header Connection: not by packets"},
		{func(c *lb.Check) { c.Headers = lb.Headers("X: " + strings.Repeat("y", 1000)) }, "", "bytes: at most 1024 by packets"},
	} {
		check := good
		c.change(&check)
		got, err := request(&check, at)
		if string(got) != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("got %q, %v, want %q, %s", got, err, c.want, c.err)
		}
	}
}

// nowhere is a sender that drops everything, or is busy.
type nowhere struct{ err error }

func (s nowhere) Send(f []Frame) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	return len(f), nil
}
func (nowhere) Close() error { return nil }

var errDown = errors.New("send: network is down")
