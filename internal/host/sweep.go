package host

import (
	"context"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// sweepEvery is the time between two steps of a sweep: a table of 1 Mi flows is swept in 4 s, one
// of 8 Mi in 32 s.
const sweepEvery = 250 * time.Millisecond

const (
	// sweepPressed is the time between two steps while a quarter of the table has established
	// flows: a table of 1 Mi flows is swept in 0.25 s.
	sweepPressed = sweepEvery / 16
	// sweepShare bounds the CPU time of sweeps under pressure: they pause for sweepShare times the
	// duration of the last step.
	sweepShare = 20
)

// sweep takes steps through the flow table until ctx ends.
func (a *Agent) sweep(ctx context.Context) {
	var over []dataplane.Share
	for rest := sweepEvery; ; {
		select {
		case <-ctx.Done():
			return
		case <-a.clock.After(rest):
		}
		began := a.clock.Now()
		if err := a.tables.SweepStep(); err != nil {
			a.log.Error("sweep the flow table", "error", err)
		}
		now, pressed := a.tables.Shares()
		for _, s := range now {
			if !slices.ContainsFunc(over, func(b dataplane.Share) bool { return b.VIP == s.VIP }) {
				a.log.Warn("VIP over its share of a table", "vip", s.VIP.VIP, "table", s.Table, "held", s.Held, "share", s.Share)
			}
		}
		over, rest = now, sweepEvery
		if pressed {
			rest = min(sweepEvery, max(sweepPressed, sweepShare*a.clock.Now().Sub(began)))
		}
	}
}

// flowStatus adds to a status the number of flows by class, and the use of the flow table.
func flowStatus(s *apiv1.NodeStatus, f dataplane.HostFlows) {
	var used uint64
	for _, class := range []struct {
		name string
		is   dataplane.FlowClass
	}{{"untrusted", dataplane.FlowUntrusted}, {"trusted", dataplane.FlowTrusted}, {"closing", dataplane.FlowClosing}} {
		n := f.ByClass[class.is]
		used += n
		if n > 0 {
			s.Flows = append(s.Flows, &apiv1.FlowClassStatus{Class: class.name, Flows: n})
		}
	}
	if f.Capacity == 0 {
		return
	}
	s.Tables = append(s.Tables,
		&apiv1.TableStatus{Name: "flows", Used: used, Capacity: f.Capacity},
		&apiv1.TableStatus{Name: "flow_addresses", Used: f.Addresses, Capacity: f.AddressCapacity})
	s.Reasons = append(s.Reasons, &apiv1.ReasonCount{Reason: "flow_expired", Packets: f.Expired, Class: string(dataplane.ClassOf("host", "flow_expired"))},
		&apiv1.ReasonCount{Reason: "flow_abandoned", Packets: f.Abandoned, Class: string(dataplane.ClassOf("host", "flow_abandoned"))})
}
