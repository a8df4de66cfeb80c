package bench

import (
	"fmt"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
)

// muxAudit checks by the mux's own counters and flow table that a run matched its case.
type muxAudit struct {
	c       muxCase
	before  dataplane.MuxCounters
	trusted uint64 // flows in the table
}

// Shares that a run must reach.
const (
	// wantKnown is the share of the traffic's flows that the table must hold, and of packets that
	// must find theirs.
	wantKnown = 0.999
	// wantEvicting is the share of new flows that must find a slot, because a bucket of the table
	// may hold trusted flows only.
	wantEvicting = 0.99
	// wantKept is the share of trusted flows that must survive a flood.
	wantKept = 0.9999
	// floodRuns fill the slots that trusted flows leave free: new flows, twice the table's size.
	floodRuns = 2
)

// begin fills the mux's tables with the flows and records its counters.
func (c muxCase) begin(harness *benchrun.Harness, mux *benchrun.Mux) (a muxAudit, err error) {
	a.c = c
	if c.table > 0 {
		if _, err := harness.Warm(mux.Target()); err != nil {
			return a, err
		}
		if a.trusted, err = trustedFlows(mux); err != nil {
			return a, err
		}
		if share := float64(a.trusted) / float64(c.traffic.Flows); share < wantKnown {
			return a, fmt.Errorf("%d of %d flows are known: want %g", a.trusted, c.traffic.Flows, wantKnown)
		}
	}
	if c.tracked() {
		if err := harness.Introduce(mux.Target()); err != nil {
			return a, err
		}
		used, err := tracked(mux)
		if err != nil {
			return a, err
		}
		if share := float64(used) / float64(c.traffic.Flows); share < wantKnown {
			return a, fmt.Errorf("%d of %d connections have records: want %g", used, c.traffic.Flows, wantKnown)
		}
	}
	for i := range uint64(floodRuns) {
		if c.traffic.New {
			if _, err := harness.Run(mux.Target(), benchrun.MaxPackets, i+1); err != nil {
				return a, err
			}
		}
	}
	a.before, err = mux.Counters()
	return a, err
}

// end checks a run of the given number of packets. It returns the share of them with the wanted
// result of the flow table.
func (a muxAudit) end(mux *benchrun.Mux, packets uint64) (float64, error) {
	after, err := mux.Counters()
	if err != nil {
		return 0, err
	}
	since := func(reason string) uint64 { return after.Reasons[reason] - a.before.Reasons[reason] }
	if sent := since("forwarded"); sent != packets {
		return 0, fmt.Errorf("%d of %d packets were forwarded: want all (reasons %v)", sent, packets, after.Reasons)
	}
	if full := since("track_full"); float64(full) > (1-wantKnown)*float64(packets) {
		return 0, fmt.Errorf("%d of %d packets found no record of their connections", full, packets)
	}
	if a.c.cookie() {
		share := 1 - float64(since("cookie_absent")+since("cookie_invalid")+since("flow_moved"))/float64(packets)
		if share < 1 {
			return share, fmt.Errorf("%g of the packets were sent by their cookies: want all (reasons %v)", share, after.Reasons)
		}
		return share, nil
	}
	if a.c.quic() {
		share := 1 - float64(since("quic_unroutable")+since("quic_invalid")+since("quic_malformed")+since("flow_moved"))/float64(packets)
		if share < 1 {
			return share, fmt.Errorf("%g of the packets were sent by their connection ids: want all (reasons %v)", share, after.Reasons)
		}
		return share, nil
	}
	if a.c.table == 0 {
		return 0, nil
	}
	share := 1 - float64(since("flow_table_full")+since("flow_moved"))/float64(packets)
	want := wantKnown
	if a.c.traffic.New {
		want = wantEvicting
	}
	if share < want {
		return share, fmt.Errorf("%g of the packets met the flow table as they should: want %g (reasons %v)", share, want, after.Reasons)
	}
	trusted, err := trustedFlows(mux)
	// A new flow with the fingerprint of a trusted one takes over its entry. One of 4 Mi finds such
	// a bucket.
	if err == nil && float64(trusted) < wantKept*float64(a.trusted) {
		err = fmt.Errorf("%d trusted flows are left of %d", trusted, a.trusted)
	}
	return share, err
}

// trustedFlows counts the trusted flows in the table.
func trustedFlows(mux *benchrun.Mux) (uint64, error) {
	totals, err := mux.Sweep()
	return totals.ByClass[dataplane.FlowTrusted], err
}

// tracked counts the connections that have records.
func tracked(mux *benchrun.Mux) (uint64, error) {
	if _, err := mux.Sweep(); err != nil {
		return 0, err
	}
	for _, t := range mux.Pressure() {
		if t.Name == "connections" {
			return t.Used, nil
		}
	}
	return 0, nil
}
