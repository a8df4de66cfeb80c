package mux

import (
	"context"
	"time"

	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/probe"
)

// tendInterval is how often the interface is looked after.
const tendInterval = time.Second

// Tend looks after the interface until ctx ends. tend mends what it finds and says so in words.
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
			// The speaker takes routes up again only when it is told, though it was just told the same.
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

// tendOnce does not tend what was taken down.
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

// linkSettle is how long after the interface's carrier came back probes are no evidence: neighbours, routes and the
// ports of switches need it.
const linkSettle = time.Second

// LinkChanged takes whether the interface has a carrier. While it has none, and for a moment after, a failed probe says
// nothing about its server: a mux whose cable was out for a moment must come back with the members that the others have.
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

// evidenceLocked says whether a failed probe may count. Probes that began while the link was down may end later, by their
// timeout.
func (a *Agent) evidenceLocked(t probe.Target) bool {
	if a.linkDown {
		return false
	}
	return a.linkUp.IsZero() || a.o.Clock.Now().Sub(a.linkUp) > t.Timeout()+linkSettle
}
