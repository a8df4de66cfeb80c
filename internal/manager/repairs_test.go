package manager_test

import (
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/store"
)

// TestHostsHearOfFormerOwners: hosts of an endpoint's members, including recently removed ones,
// receive the change. Other hosts do not, and the mux receives its part after them. The clock is
// frozen, so that no wait ends by itself. A repair alone follows the plan only after a pause.
func TestHostsHearOfFormerOwners(t *testing.T) {
	c := clock.NewFake(time.Now())
	r := newRigAt(t, store.NewMemory(), c)
	repaired := func(hosts ...int) int64 {
		s := web(hosts...)
		s.Endpoints[0].RepairWindow = new(time.Hour)
		return r.apply(s).Revision
	}
	r.apply(network(), hostNode(1), hostNode(2), hostNode(3), muxNode(1))
	first := repaired(1, 2)
	hosts := []*rawStream{r.raw("host1", "host"), r.raw("host2", "host")}
	stranger, mux := r.raw("host3", "host"), r.raw("mux1", "mux")
	for _, s := range hosts {
		up := receive(t, s)
		for _, item := range up.Upsert {
			if item.GetRepair() != nil {
				t.Errorf("nothing was displaced, but a host hears %v", item)
			}
		}
		obey(t, s, first)
	}
	obey(t, stranger, receive(t, stranger).Revision)
	receive(t, mux)

	last := repaired(1)
	c.Advance(40 * time.Millisecond) // the pause, shorter than muxes wait for hosts
	for i, s := range hosts {
		up := receive(t, s)
		if len(up.Upsert) != 1 || len(up.Delete) != 0 || up.Revision != last {
			t.Fatalf("host%d: %v: want a repair and nothing else", i+1, up)
		}
		rep := up.Upsert[0].GetRepair()
		if len(rep.GetMemberships()) != 2 || len(rep.GetTargets()) != 2 || len(rep.GetKey().GetKey()) != 16 || rep.GetTargets()[1].GetHost() != "10.20.2.1" {
			t.Errorf("host%d: %v", i+1, rep)
		}
	}
	obey(t, hosts[0], last)
	obey(t, hosts[1], last)
	if up := receive(t, mux); up.Revision != last || len(up.Upsert) != 1 || up.Upsert[0].GetEndpoint() == nil {
		t.Errorf("mux: %v", up)
	}
	// The other host receives only its own changes.
	last = repaired(1, 3)
	if up := receive(t, stranger); up.Revision != last || len(up.Upsert) != 2 {
		t.Errorf("host3: %v: want its binding and the repair", up)
	}
}
