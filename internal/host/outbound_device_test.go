package host

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/snat"
)

// removedDevice is a frameDevice that was removed.
type removedDevice struct{ *fakeDevice }

func (d removedDevice) Read([]byte) (int, error) { return 0, errors.New("no such device") }

// TestOutboundDeviceRemoved checks that packets without a port are not redirected to a removed
// device, and wait again once there is another one.
func TestOutboundDeviceRemoved(t *testing.T) {
	now := clock.NewFake(waitingStart)
	tables, removed, device := dataplane.NewFakeHostSNAT(now.Now), removedDevice{newFakeDevice()}, newFakeDevice()
	o := newOutbound(tables, 1, now, slog.New(slog.DiscardHandler))
	made := 0
	o.make = func() (frameDevice, frameSender, error) {
		if made++; made == 1 {
			return removed, removed, nil
		}
		return device, device, nil
	}
	if err := o.SetHolders([]snat.Holder{outboundHolder}); err != nil {
		t.Fatal(err)
	}
	<-removed.frames // until it is closed
	if tables.Device() != 0 {
		t.Error("packets go to a device that is gone")
	}
	o.tend()
	if made != 1 {
		t.Error("another device was made at once")
	}
	now.Advance(outboundAgain)
	o.tend()
	if made != 2 || tables.Device() != device.Index() {
		t.Fatalf("made %d devices, packets go to %d", made, tables.Device())
	}
	device.frames <- waitingFrameOf(outboundHolder.DIP, 1)
	device.frames <- make([]byte, 60) // read when the other is there
	if err := o.SetRanges(outboundHolder, []snat.Range{200}, nil); err != nil {
		t.Fatal(err)
	}
	equalNumbers(t, "ports came", [][]byte{<-device.sent}, 1)
	o.close()
}

// TestOutboundSettles checks that the count of a DIP without further packets is corrected, while
// another DIP sends.
func TestOutboundSettles(t *testing.T) {
	now := clock.NewFake(waitingStart)
	tables, device := dataplane.NewFakeHostSNAT(now.Now), newFakeDevice()
	o := newOutbound(tables, 1, now, slog.New(slog.DiscardHandler))
	o.make = func() (frameDevice, frameSender, error) { return device, device, nil }
	quiet, busy := outboundHolder, snat.Holder{VIP: outboundHolder.VIP, DIP: netip.MustParseAddr("10.20.1.12")}
	if err := o.SetHolders([]snat.Holder{quiet, busy}); err != nil {
		t.Fatal(err)
	}
	defer o.close()
	o.arrive(waitingFrameOf(quiet.DIP, 1))
	o.arrive(waitingFrameOf(busy.DIP, 2))
	o.tend()
	for _, h := range []snat.Holder{quiet, busy} {
		if n, ok := tables.Settled(h.DIP); ok {
			t.Errorf("%s: %d packets wait, while others may be on their way", h.DIP, n)
		}
	}
	now.Advance(waitingLatest)
	o.arrive(waitingFrameOf(busy.DIP, 3))
	o.tend()
	if n, ok := tables.Settled(quiet.DIP); !ok || n != 1 {
		t.Errorf("%s: %d packets wait (%v), want 1", quiet.DIP, n, ok)
	}
	if n, ok := tables.Settled(busy.DIP); ok {
		t.Errorf("%s: %d packets wait, while others may be on their way", busy.DIP, n)
	}
	now.Advance(waitingPatience)
	o.tend()
	if n, ok := tables.Settled(quiet.DIP); !ok || n != 0 {
		t.Errorf("%s: %d packets wait (%v), want none", quiet.DIP, n, ok)
	}
}
