package mux

import (
	"cmp"
	"context"
	"slices"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// Timing of sweeps.
const (
	// drainSweep is the time between sweeps while flows leave a draining member, because its
	// operator watches the count.
	drainSweep = time.Second
	// sweepShare bounds the CPU share of sweeps: the pause is at least this many times the duration
	// of the last one.
	sweepShare = 20
)

// sweeps is the result of the last sweep of the flow table.
type sweeps struct {
	totals dataplane.FlowTotals
	fault  string
}

// SweepFlows sweeps the flow table until ctx ends: every interval, soon after the tables changed,
// and every second while a draining member has flows or a table that VIPs share is under pressure.
func (a *Agent) SweepFlows(ctx context.Context, interval time.Duration) {
	for {
		began := a.o.Clock.Now()
		a.sweepOnce()
		rest := max(drainSweep, a.o.Clock.Now().Sub(began)*sweepShare)
		select {
		case <-ctx.Done():
			return
		case <-a.o.Clock.After(rest):
		}
		if a.flowsDrain() || a.tablesPressed() {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-a.sweep:
		case <-a.o.Clock.After(max(interval-rest, 0)):
		}
	}
}

// sweepOnce sweeps and stores the counts.
func (a *Agent) sweepOnce() {
	totals, err := a.o.Tables.Sweep()
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.sweeps.fault
	a.logSharesLocked(totals.Over)
	a.sweeps = sweeps{totals: totals}
	if err != nil {
		a.sweeps.fault = err.Error()
		if a.sweeps.fault != before {
			a.o.Log.Error("sweep the flow table", "error", err)
		}
	}
}

// logSharesLocked logs the VIPs that exceeded their share of a table since the last sweep.
func (a *Agent) logSharesLocked(over []dataplane.Share) {
	for _, s := range over {
		before := func(b dataplane.Share) bool { return b.VIP == s.VIP && b.Table == s.Table }
		if !slices.ContainsFunc(a.sweeps.totals.Over, before) {
			a.o.Log.Warn("VIP over its share of a table", "vip", s.VIP.VIP, "table", s.Table, "held", s.Held, "share", s.Share)
		}
	}
}

// tablesPressed reports whether the last sweep found a table under pressure.
func (a *Agent) tablesPressed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sweeps.totals.Pressed
}

// flowsDrain reports whether a member that takes no new flows had some at the last sweep.
func (a *Agent) flowsDrain() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.sweeps.totals.Members) == 0 {
		return false
	}
	for _, e := range a.plan.Endpoints {
		drains := func(m plan.Member) bool { return m.Weight == 0 && a.flowsOfLocked(e.Key, m.ID) > 0 }
		if slices.ContainsFunc(e.Members, drains) {
			return true
		}
	}
	return false
}

// flowsOfLocked returns the number of a member's flows at the last sweep.
func (a *Agent) flowsOfLocked(e lb.EndpointKey, member uint16) uint64 {
	return a.sweeps.totals.Members[dataplane.MemberKey{Endpoint: e, Member: member}]
}

// flowStatusLocked returns the result of the last sweep in the API's form, sorted by class.
func (a *Agent) flowStatusLocked() []*apiv1.FlowClassStatus {
	var out []*apiv1.FlowClassStatus
	for class, n := range a.sweeps.totals.ByClass {
		out = append(out, &apiv1.FlowClassStatus{Class: flowClass(dataplane.Flow{Class: class}), Flows: n})
	}
	slices.SortFunc(out, func(x, y *apiv1.FlowClassStatus) int { return cmp.Compare(x.Class, y.Class) })
	return out
}

// tableStatus returns the fill levels of the tables in the API's form.
func tableStatus(tables []dataplane.TablePressure) []*apiv1.TableStatus {
	out := make([]*apiv1.TableStatus, 0, len(tables))
	for _, t := range tables {
		out = append(out, &apiv1.TableStatus{Name: t.Name, Used: t.Used, Capacity: t.Capacity})
	}
	return out
}
