package main

import (
	"slices"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

const (
	// drainPoll is the poll interval of a drain. Muxes count flows every second during a drain.
	drainPoll = time.Second
	// drainQuiet is the number of consecutive polls without flows that end the wait, because a
	// count is as old as the mux's last sweep.
	drainQuiet = 3
)

// drainWatch waits until backends have no flows.
type drainWatch struct {
	service  string
	backends []lb.BackendKey
	// revision is that of the drain. Muxes that have not applied it still send new flows.
	revision int64
	// status requests the status from the manager, pause waits for a drainPoll, and tell prints
	// progress.
	status func() (*apiv1.StatusResponse, error)
	pause  func() error
	tell   func(format string, args ...any) error
}

// wait returns when no connected mux counts a flow of the backends, or when the limit of their
// drain has passed and they were removed from the endpoint.
func (w *drainWatch) wait() error {
	quiet, last := 0, uint64(0)
	for {
		status, err := w.status()
		if err != nil {
			return err
		}
		flows, present, behind := w.flows(status)
		if !present && last > 0 {
			return w.tell("the limit has passed, %d flows were given up\n", last)
		}
		if flows != last {
			if err := w.tell("%d flows left\n", flows); err != nil {
				return err
			}
		}
		if last = flows; flows > 0 || behind {
			quiet = 0
		} else {
			quiet++
		}
		if quiet == drainQuiet {
			return w.tell("drained\n")
		}
		if err := w.pause(); err != nil {
			return err
		}
	}
}

// flows returns the sum of the flows that connected muxes report, whether the backends are still
// members, and whether a mux has not applied the drain yet.
func (w *drainWatch) flows(status *apiv1.StatusResponse) (flows uint64, present, behind bool) {
	for _, m := range reports(status, w.service) {
		at := slices.IndexFunc(w.backends, func(k lb.BackendKey) bool {
			return k.DIP.String() == m.GetDip() && uint32(k.Port) == m.GetDipPort()
		})
		if at < 0 || !m.node.GetConnected() {
			continue
		}
		flows, present = flows+m.GetFlows(), true
		behind = behind || m.node.GetSyncedRevision() < w.revision
	}
	return flows, present, behind
}

// drainedBackends returns the members that draining one backend drains: those of both its families
// and of all its ports.
func drainedBackends(s *lb.Service, key lb.BackendKey) []lb.BackendKey {
	var out []lb.BackendKey
	for i := range s.Endpoints {
		for _, b := range s.Endpoints[i].Backends {
			if !isBackend(&b, key) {
				continue
			}
			for _, dip := range b.DIPs {
				if k := (lb.BackendKey{DIP: dip, Port: b.Port}); !slices.Contains(out, k) {
					out = append(out, k)
				}
			}
		}
	}
	return out
}
