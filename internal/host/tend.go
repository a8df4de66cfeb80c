package host

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/netdev"
)

// tendInterval is the time between two checks that programs and pins are where they belong.
const tendInterval = time.Second

// tender restores programs and pins that others removed.
type tender struct {
	// uplink returns the present index of the uplink.
	uplink func() (int, error)
	// tend restores missing programs and pins, for an uplink of this index.
	tend func(ifindex int) (restored []string, err error)
	// moved is called with the index of an uplink that was replaced by a device of the same name.
	moved func(ifindex int)
	// report receives the present fault, empty when there is none.
	report func(fault string)
	clock  clock.Clock
	log    *slog.Logger

	ifindex int // of the uplink, as of the last check
	fault   string
}

// uplinkIndex returns the index of an interface.
func uplinkIndex(name string) (int, error) {
	dev, err := netdev.FindInterface(name)
	return dev.Index, err
}

// run checks until ctx ends.
func (t *tender) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.clock.After(tendInterval):
		}
		t.once()
	}
}

// once checks and restores.
func (t *tender) once() {
	fault := ""
	ifindex, err := t.uplink()
	if err == nil {
		var restored []string
		restored, err = t.tend(ifindex)
		if len(restored) > 0 {
			t.log.Warn("restored programs or pins that were removed", "restored", strings.Join(restored, "; "))
		}
		if ifindex != t.ifindex {
			t.ifindex = ifindex
			t.moved(ifindex)
		}
	}
	if err != nil {
		fault = "restore programs and pins: " + err.Error()
	}
	if fault != t.fault {
		if fault != "" {
			t.log.Error("restore programs and pins", "error", err)
		}
		t.fault = fault
	}
	t.report(fault)
}

// setUplinkFault records the reason why the uplink lacks programs, for the status.
func (a *Agent) setUplinkFault(fault string) {
	a.mu.Lock()
	a.uplinkFault = fault
	a.mu.Unlock()
}
