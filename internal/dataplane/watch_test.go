package dataplane

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// runBy runs a frame through a program as muxFixture.run does.
func runBy(t *testing.T, p *ebpf.Program, frame []byte) (uint32, []byte) {
	t.Helper()
	out := make([]byte, len(frame)+256)
	opts := ebpf.RunOptions{Data: frame, DataOut: out}
	verdict, err := p.Run(&opts)
	if err != nil {
		t.Fatal(err)
	}
	return verdict, opts.DataOut
}

// next is an event that must be there already.
func next(t *testing.T, w *Watch) WatchEvent {
	t.Helper()
	e, err := w.Next(time.Now().Add(10 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// none: no event is there.
func none(t *testing.T, w *Watch) {
	t.Helper()
	if e, err := w.Next(time.Now()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("event %+v, %v: there must be none", e, err)
	}
}

// TestWatchTellsWhatTheMuxDoes runs packets through both programs: verdict and bytes are equal, and the event tells them.
func TestWatchTellsWhatTheMuxDoes(t *testing.T) {
	f := basicFixture(t)
	w, err := f.mux.Watch(WatchFilter{VIP: muxVIP4, Snaplen: MaxSnaplen, SentSnaplen: MaxSnaplen})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer w.Close()
	ttl1 := tcp4(80)
	ttl1.TTL = 1
	for name, c := range map[string]struct {
		packet wire.Packet
		action string
		reason string
	}{
		"forwarded":         {tcp4(80), "tx", "forwarded"},
		"4in6":              {udp4(53), "tx", "forwarded"},
		"no endpoint":       {tcp4(9), "drop", "no_endpoint"},
		"no backend":        {tcp4(82), "drop", "no_backend"},
		"ttl":               {ttl1, "drop", "ttl_expired"},
		"next hop is empty": {tcp4(83), "drop", "no_nexthop"},
	} {
		frame := c.packet.Frame()
		wantVerdict, want := runBy(t, f.mux.Program(), frame)
		before := time.Now()
		verdict, out := runBy(t, w.Program(), frame)
		if verdict != wantVerdict || !bytes.Equal(out, want) {
			t.Errorf("%s: the watching program gave verdict %d and\n% x\nthe mux %d and\n% x", name, verdict, out, wantVerdict, want)
		}
		e := next(t, w)
		if e.Action != c.action || !slices.Equal(e.Reasons, []Reason{{c.reason, MuxReasons().Class(c.reason)}}) {
			t.Errorf("%s: event says %s %v, want %s %s", name, e.Action, e.Reasons, c.action, c.reason)
		}
		if !bytes.Equal(e.Data, frame) || e.Length != len(frame) {
			t.Errorf("%s: event has %d of %d bytes\n% x\nwant\n% x", name, len(e.Data), e.Length, e.Data, frame)
		}
		sent := want
		if c.action == "drop" {
			sent = nil
		}
		if !bytes.Equal(e.Sent, sent) || e.SentLength != len(sent) {
			t.Errorf("%s: event has sent % x\nwant\n% x", name, e.Sent, sent)
		}
		if d := e.Time.Sub(before); d < -time.Second || d > 10*time.Second {
			t.Errorf("%s: event of %v, packet of %v", name, e.Time, before)
		}
	}
	if lost, err := w.Lost(); lost != 0 || err != nil {
		t.Errorf("lost %d, %v", lost, err)
	}
}

func TestWatchFilters(t *testing.T) {
	f := basicFixture(t)
	for name, c := range map[string]struct {
		filter WatchFilter
		taken  []wire.Packet
		left   []wire.Packet
	}{
		"a VIP":      {WatchFilter{VIP: muxVIP4}, []wire.Packet{tcp4(80), udp4(53), tcp4(9)}, []wire.Packet{tcp6(80)}},
		"IPv6":       {WatchFilter{VIP: muxVIP6}, []wire.Packet{tcp6(80)}, []wire.Packet{tcp4(80)}},
		"a protocol": {WatchFilter{VIP: muxVIP4, Protocol: lb.UDP}, []wire.Packet{udp4(53)}, []wire.Packet{tcp4(53)}},
		"a port":     {WatchFilter{VIP: muxVIP4, First: 80, Last: 80}, []wire.Packet{tcp4(80), udp4(80)}, []wire.Packet{tcp4(81), tcp4(79)}},
		"a range":    {WatchFilter{VIP: muxVIP4, First: 80, Last: 82}, []wire.Packet{tcp4(80), tcp4(82)}, []wire.Packet{tcp4(83), tcp4(79)}},
	} {
		c.filter.Snaplen, c.filter.SentSnaplen = 20, 40
		w, err := f.mux.Watch(c.filter)
		if err != nil {
			t.Fatalf("%s: %+v", name, err)
		}
		for _, p := range c.left {
			runBy(t, w.Program(), p.Frame())
		}
		none(t, w)
		for _, p := range c.taken {
			runBy(t, w.Program(), p.Frame())
			if e := next(t, w); !bytes.Equal(e.Data, p.Frame()[:20]) || len(e.Sent) > 40 {
				t.Errorf("%s: event %+v", name, e)
			}
		}
		none(t, w)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if _, err := w.Next(time.Time{}); err != io.EOF {
			t.Errorf("%s: closed watch: %v", name, err)
		}
	}
}

// TestWatchSurvivesAFullRing: what nobody reads is counted, and forwarding goes on.
func TestWatchSurvivesAFullRing(t *testing.T) {
	f := basicFixture(t)
	w, err := f.mux.Watch(WatchFilter{VIP: muxVIP4, Snaplen: MaxSnaplen, SentSnaplen: MaxSnaplen})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := f.mux.Watch(WatchFilter{VIP: muxVIP4, Snaplen: 1, SentSnaplen: 1}); !errors.Is(err, ErrWatched) {
		t.Errorf("second watch: %v, want %v", err, ErrWatched)
	}
	before := f.reasonsNow()["forwarded"]
	big := tcp4(80)
	tcp := big.Payload.(wire.TCP)
	tcp.Data = make([]byte, 1400)
	big.Payload = tcp
	const runs = 4000 // of 2.9 KB each: twice the ring
	if _, err := w.Program().Run(&ebpf.RunOptions{Data: big.Frame(), DataOut: make([]byte, 2048), Repeat: 1}); err != nil {
		t.Fatal(err)
	}
	for range runs {
		runBy(t, w.Program(), big.Frame())
	}
	lost, err := w.Lost()
	if err != nil || lost == 0 {
		t.Errorf("lost %d, %v: must be above 0", lost, err)
	}
	if n := f.reasonsNow()["forwarded"] - before; n != runs+1 {
		t.Errorf("forwarded %d of %d", n, runs+1)
	}
	next(t, w)
}

// TestProbesWhileWatched: the watching program answers for probes from the same tables.
func TestProbesWhileWatched(t *testing.T) {
	f := basicFixture(t)
	r := newProbeRig(t, f, ProbeRule{Peer: netip.AddrPortFrom(probeServer4, 8080), Local: probeLocal4, Request: probeText})
	w, err := f.mux.Watch(WatchFilter{VIP: muxVIP4, Snaplen: MaxSnaplen, SentSnaplen: MaxSnaplen})
	must(t, err)
	defer w.Close()
	verdict, out := runBy(t, w.Program(), synAckOf(r))
	if want := r.sent(wire.TCP{Seq: r.isn + 1, Ack: 1, Flags: wire.ACK | wire.PSH, Data: probeText}); verdict != xdpTX || !bytes.Equal(out, want) {
		t.Errorf("verdict %d, %x, want %x", verdict, out, want)
	}
	if got := r.probes.Result(r.number, r.isn).State; got != ProbeConnected {
		t.Errorf("state %d", got)
	}
}
