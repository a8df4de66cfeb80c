package mux

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// outboundPlan returns a plan of a service without endpoints and of one with endpoints.
func outboundPlan() plan.Plan {
	p := planOf([]string{plainVIP}, snatDIP)
	p.Services = []plan.Service{
		{Name: "out", VIPs: []netip.Addr{netip.MustParseAddr(snatVIP)}, Outbound: true},
		{Name: "web", VIPs: []netip.Addr{netip.MustParseAddr(plainVIP)}},
	}
	return p
}

// holds checks whether the tables have the VIP without endpoints.
func (w *leasedWorld) holds(when string, want bool) {
	w.t.Helper()
	got := slices.ContainsFunc(w.tables.state.VIPs, func(v dataplane.MuxVIP) bool { return v.VIP.String() == snatVIP && v.Outbound })
	if got != want {
		w.t.Errorf("%s: the tables have the VIP: %v, expected %v", when, got, want)
	}
}

// TestOutboundVIP: a VIP without endpoints is in the tables as long as its service exists, and
// announced while servers hold ports of it.
func TestOutboundVIP(t *testing.T) {
	w := newLeasedWorld(t)
	w.agent.o.Linger = 5 * time.Second
	w.apply(outboundPlan())
	w.holds("it is planned", true)
	w.announces("no server holds ports", plainVIP)
	if got := w.agent.Status().GetRoutes(); len(got) != 2 || got[0].GetPrefix() != snatVIP+"/32" || got[0].GetAdvertised() {
		t.Errorf("routes in the status: %v", got)
	}
	w.snapshot()
	w.announces("leases came, and there are none", plainVIP)
	w.rev++
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: w.rev, Batches: [][]byte{w.lease(200)}})
	w.announces("a server got ports", snatVIP, plainVIP)

	limited := outboundPlan()
	limited.Services[0].Limits.Packets = 7
	w.apply(limited)
	w.holds("it is limited", true)
	if i := slices.IndexFunc(w.tables.state.VIPs, func(v dataplane.MuxVIP) bool { return v.VIP.String() == snatVIP }); w.tables.state.VIPs[i].Limits.Packets != 7 {
		t.Errorf("limits %+v", w.tables.state.VIPs[i].Limits)
	}
	with := planOf([]string{snatVIP, plainVIP}, snatDIP)
	with.Services = outboundPlan().Services
	with.Services[0].Outbound = false
	w.apply(with)
	w.holds("it has an endpoint", false)
	w.announces("it has an endpoint", snatVIP, plainVIP)
	w.apply(outboundPlan())
	w.holds("its endpoint is gone", true)
	w.announces("its endpoint is gone", snatVIP, plainVIP)

	left := planOf([]string{plainVIP}, snatDIP)
	w.apply(left)
	w.announces("its service is gone", plainVIP)
	w.holds("its service is gone: routers may not know", true)
	w.apply(outboundPlan())
	w.announces("it is back", snatVIP, plainVIP)
	w.apply(left)
	w.clock.Advance(5 * time.Second)
	w.agent.forgetLingering(context.Background())
	w.holds("its service has been gone for long", false)
	w.announces("its service has been gone for long", plainVIP)
}

// TestOutboundVIPAfterRestart: an agent that starts announces the VIP like the previous one, and
// removes it if the plan no longer has it.
func TestOutboundVIPAfterRestart(t *testing.T) {
	for _, stays := range []bool{true, false} {
		w := newLeasedWorld(t)
		w.apply(outboundPlan())
		w.rev++
		w.lease(200)
		w.snapshot()
		w.announces("before", snatVIP, plainVIP)
		w.leases = NewLeases(w.data, w.clock)
		if err := w.leases.Remember(w.file); err != nil {
			t.Fatal(err)
		}
		w.restart()
		want := []string{snatVIP, plainVIP}
		if stays {
			w.apply(outboundPlan())
		} else {
			w.apply(planOf([]string{plainVIP}, snatDIP))
			want = want[1:]
		}
		for range 2 {
			w.probe(snatDIP, true, "")
		}
		w.agent.Speak(context.Background())
		w.announces("after", want...)
		w.holds("after", stays)
	}
}

// TestWaysToServersOfLeases: next hops to servers that hold ports are resolved even if they are no
// backends. Next hops of other destinations stay in the tables until they are resolved again.
func TestWaysToServersOfLeases(t *testing.T) {
	const alone = "10.20.9.99"
	w := newLeasedWorld(t)
	w.apply(outboundPlan())
	w.leases.Begin()
	w.hear(&apiv1.SnatLeases{Snapshot: true, Configured: true, Newest: true, Revision: 1, Vips: w.vip(alone)})
	wanted := func() bool { return slices.Contains(w.hops.want, netip.MustParseAddr(alone)) }
	w.agent.applying.Lock()
	w.agent.wantLeased()
	w.agent.tellOuters()
	w.agent.applying.Unlock()
	if !wanted() {
		t.Fatalf("the ways to %v are followed", w.hops.want)
	}
	backend := netip.MustParseAddr(snatDIP)
	w.tables.hops = nil
	w.agent.HopsChanged(map[netip.Addr]netdev.NextHop{backend: {Ifindex: 2}})
	if w.tables.hops != nil {
		t.Errorf("the tables got %v before the way to %s was known", w.tables.hops, alone)
	}
	w.agent.HopsChanged(map[netip.Addr]netdev.NextHop{backend: {Ifindex: 2}, netip.MustParseAddr(alone): {Ifindex: 2}})
	if len(w.tables.hops) != 2 {
		t.Errorf("the tables got %v", w.tables.hops)
	}
	if n := NewLeases(w.data, w.clock).Outers(); len(n) != 1 || n[0].String() != alone {
		t.Errorf("an agent that starts knows of %v", n)
	}
	w.hear(&apiv1.SnatLeases{Newest: true, Revision: 2, Configured: true})
	w.apply(outboundPlan())
	if wanted() {
		t.Errorf("the ways to %v are followed after the server left", w.hops.want)
	}
}
