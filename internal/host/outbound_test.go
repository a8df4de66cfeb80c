package host

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/snat"
)

// fakeDevice is a frameDevice and a frameSender in memory.
type fakeDevice struct {
	frames chan []byte
	sent   chan []byte
	once   sync.Once
}

func newFakeDevice() *fakeDevice {
	return &fakeDevice{frames: make(chan []byte), sent: make(chan []byte, 100)}
}

func (d *fakeDevice) Index() int { return 17 }

func (d *fakeDevice) Read(b []byte) (int, error) {
	f, ok := <-d.frames
	if !ok {
		return 0, os.ErrClosed
	}
	return copy(b, f), nil
}

func (d *fakeDevice) Send(f []byte) error { d.sent <- f; return nil }

func (d *fakeDevice) Close() error {
	d.once.Do(func() { close(d.frames) })
	return nil
}

var outboundHolder = snat.Holder{VIP: snat.VIP{Addr: netip.MustParseAddr("203.0.113.10")}, DIP: netip.MustParseAddr("10.20.1.11")}

// TestOutbound checks that the first server with SNAT creates the device, and that packets from it
// are sent on, in order, once their server has ports, and dropped if that takes too long.
func TestOutbound(t *testing.T) {
	now := clock.NewFake(waitingStart)
	tables, device := dataplane.NewFakeHostSNAT(now.Now), newFakeDevice()
	o := newOutbound(tables, 1, now, slog.New(slog.DiscardHandler))
	made := 0
	o.make = func() (frameDevice, frameSender, error) {
		if made++; made == 1 {
			return nil, nil, errors.New("not yet")
		}
		return device, device, nil
	}
	h := outboundHolder
	if err := errors.Join(o.SetHolders(nil), o.SetHolders([]snat.Holder{h})); err != nil {
		t.Fatal(err)
	}
	if made != 1 || tables.Device() != 0 {
		t.Fatalf("made %d devices, packets go to %d", made, tables.Device())
	}
	now.Advance(outboundAgain)
	o.tend()
	if made != 2 || tables.Device() != device.Index() {
		t.Fatalf("made %d devices, packets go to %d", made, tables.Device())
	}
	for n := range uint32(3) {
		device.frames <- waitingFrameOf(h.DIP, n)
	}
	device.frames <- make([]byte, 60) // not ours; read when the three are there
	if err := o.SetRanges(h, []snat.Range{200}, nil); err != nil {
		t.Fatal(err)
	}
	equalNumbers(t, "ports came", [][]byte{<-device.sent, <-device.sent, <-device.sent}, 0, 1, 2)
	if got := tables.DealtOf(h.DIP); got != 3 {
		t.Errorf("%d packets were dealt with, want 3", got)
	}
	device.frames <- waitingFrameOf(h.DIP, 7)
	equalNumbers(t, "late", [][]byte{<-device.sent}, 7)
	device.frames <- waitingFrameOf(h.DIP, 7)
	device.frames <- make([]byte, 60)
	now.Advance(waitingPatience)
	o.tend()
	if o.lost() != 1 || tables.DealtOf(h.DIP) != 5 {
		t.Errorf("%d lost, %d dealt with, want 1 and 5", o.lost(), tables.DealtOf(h.DIP))
	}
	o.close()
	if tables.Device() != 0 {
		t.Error("packets go to a device that is gone")
	}
}

// TestLeasesRestBeforeTheyGo checks that an idle range is out of use for new connections for a
// while before it is returned, and kept if a connection took one of its ports at the last moment.
func TestLeasesRestBeforeTheyGo(t *testing.T) {
	now := clock.NewFake(waitingStart)
	tables := dataplane.NewFakeHostSNAT(now.Now)
	l := NewLeases(tables, snat.DefaultStockRules, now, slog.New(slog.DiscardHandler))
	h := outboundHolder
	hear := func(revision int64, kind snat.Kind, ranges ...snat.Range) {
		t.Helper()
		a := convert.ToSNATAnswer(snat.Answer{Holder: h, Kind: kind, Ranges: ranges, Revision: revision})
		if err := l.Hear(&apiv1.PlanUpdate{SnatAnswers: &apiv1.SnatAnswers{Epoch: 1, Answers: []*apiv1.SnatAnswer{a}}}); err != nil {
			t.Fatal(err)
		}
	}
	said := func() *apiv1.NodeReport {
		l.mu.Lock()
		l.ready[h] = true
		l.mu.Unlock()
		r := &apiv1.NodeReport{}
		l.Say(r)
		return r
	}
	l.Begin()
	if err := l.Hear(&apiv1.PlanUpdate{SnatHolders: &apiv1.SnatHolders{Holders: []*apiv1.SnatHolder{convert.ToSNATHolder(h)}}}); err != nil {
		t.Fatal(err)
	}
	if got := tables.Told(); len(got) != 1 || got[0] != h {
		t.Fatalf("the tables were told of %v", got)
	}
	said()
	hear(5, snat.All, 200, 201, 202, 203)
	now.Advance(snat.DefaultStockRules.Idle)
	if r := said(); len(r.GetSnatReturns()) != 0 {
		t.Fatalf("gave back %v at once", r.GetSnatReturns())
	}
	rest := tables.Usable(h)
	if len(rest) != snat.DefaultStockRules.Keep {
		t.Fatalf("the tables have %v while the others rest", rest)
	}
	if got := tables.Ranges(h); len(got) != 4 {
		t.Fatalf("the tables have %v: connections of resting ranges are over", got)
	}
	var resting []snat.Range
	for _, r := range []snat.Range{200, 201, 202, 203} {
		if r != rest[0] && r != rest[1] {
			resting = append(resting, r)
		}
	}
	// A packet was just taking a port of one.
	tables.Use(h, resting[0])
	now.Advance(snat.DefaultStockRules.Patience)
	r := said()
	if len(r.GetSnatReturns()) != 1 || len(r.GetSnatReturns()[0].GetRanges()) != 1 || r.GetSnatReturns()[0].GetRanges()[0] != uint32(resting[1]) {
		t.Fatalf("gave back %v, want %d alone", r.GetSnatReturns(), resting[1])
	}
	if got := tables.Usable(h); len(got) != 3 {
		t.Fatalf("new connections use %v, want the used range again", got)
	}
	// A reported return is not revoked.
	tables.Use(h, resting[1])
	now.Advance(snat.DefaultStockRules.Patience)
	if r := said(); len(r.GetSnatReturns()) != 1 || r.GetSnatReturns()[0].GetRanges()[0] != uint32(resting[1]) {
		t.Fatalf("gave back %v the second time", r.GetSnatReturns())
	}
	hear(6, snat.Taken, resting[1])
	if _, rests := l.resting[h][resting[1]]; rests {
		t.Errorf("%v still rest", l.resting[h])
	}
}

// TestOutboundRuns checks that run ends with its context and removes the device.
func TestOutboundRuns(t *testing.T) {
	tables, device := dataplane.NewFakeHostSNAT(time.Now), newFakeDevice()
	o := newOutbound(tables, 1, clock.System{}, slog.New(slog.DiscardHandler))
	o.make = func() (frameDevice, frameSender, error) { return device, device, nil }
	if err := o.SetHolders([]snat.Holder{outboundHolder}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { o.run(ctx); close(done) }()
	cancel()
	<-done
	if tables.Device() != 0 {
		t.Error("packets go to a device that is gone")
	}
}
