package mux

import (
	"context"
	"time"

	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/probe"
)

// tendInterval is the interval of the link monitor.
const tendInterval = time.Second

// Tend monitors the interface until ctx ends. tend repairs it and returns a description of the
// repair.
func (a *Agent) Tend(ctx context.Context, tend func() (mended string, err error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.o.Clock.After(tendInterval):
		}
		mended, err, left := a.tendOnce(tend)
		if left {
			return
		}
		fault := ""
		if err != nil {
			fault = err.Error()
		}
		a.mu.Lock()
		before := a.interfaceFault
		a.interfaceFault = fault
		a.mu.Unlock()
		if mended != "" {
			a.o.Log.Warn("interface", "mended", mended)
			// The interface lost its routes, and the speaker restores them only with the next Set.
			a.forgetSaid()
			notify.Send(a.speak)
		}
		if fault != before {
			notify.Send(a.changed)
			if fault != "" {
				a.o.Log.Error("interface", "error", fault)
			}
		}
	}
}

// tendOnce calls tend unless the mux was taken down.
func (a *Agent) tendOnce(tend func() (string, error)) (mended string, err error, left bool) {
	a.tending.Lock()
	defer a.tending.Unlock()
	a.mu.Lock()
	left = a.left
	a.mu.Unlock()
	if left {
		return "", nil, true
	}
	mended, err = tend()
	return mended, err, false
}

// linkSettle is how long after the carrier came back failed probes do not count, because
// neighbours, routes and switch ports need time.
const linkSettle = time.Second

// LinkChanged records whether the interface has a carrier. Without one, and for a moment after,
// failed probes do not count against their server, because a mux whose cable was unplugged for a
// moment must return with the same members as the other muxes.
func (a *Agent) LinkChanged(up bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.linkDown == !up {
		return
	}
	a.linkDown = !up
	if up {
		a.linkUp = a.o.Clock.Now()
	}
	a.o.Log.Info("interface", "carrier", up)
}

// evidenceLocked reports whether a failed probe counts. A probe sent while the link was down may
// end later by its timeout.
func (a *Agent) evidenceLocked(t probe.Target) bool {
	if a.linkDown {
		return false
	}
	return a.linkUp.IsZero() || a.o.Clock.Now().Sub(a.linkUp) > t.Timeout()+linkSettle
}
