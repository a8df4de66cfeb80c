package manager_test

import (
	"net/netip"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/store"
)

// TestMuxesHearAfterHosts: while a host has not applied a change, muxes do not receive it. Later
// changes reach them in one update with it. The clock is frozen, so that only the host's report
// ends the wait.
func TestMuxesHearAfterHosts(t *testing.T) {
	frozen := clock.NewFake(time.Now())
	r := newRigAt(t, store.NewMemory(), frozen)
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), web(1))
	host := r.raw("host2", "host")
	obey(t, host, receive(t, host).Revision)
	mux := r.raw("mux1", "mux")
	receive(t, mux)

	first := r.apply(web(1, 2)).Revision
	if up := receive(t, host); up.Revision != first || len(up.Upsert) != 1 {
		t.Fatalf("host: %v", up)
	}
	gone := web(1, 2)
	gone.Endpoints[0].Backends[0].Drain = true
	r.apply(gone) // this does not concern the host
	obey(t, host, first)
	up := receive(t, mux)
	if members := up.Upsert[0].GetEndpoint().GetMembers(); len(members) != 2 || members[0].Weight != 0 && members[1].Weight != 0 {
		t.Errorf("mux at revision %d: %v: must hear both changes at once", up.Revision, members)
	}
}

// obey reports a revision as applied by the data plane.
func obey(t *testing.T, s *rawStream, revision int64) {
	t.Helper()
	if err := s.Send(&apiv1.NodeReport{SyncedRevision: revision}); err != nil {
		t.Fatal(err)
	}
}

// TestMuxesDoNotWaitForOtherHosts: a host that connected and has not applied its plan yet delays
// only changes of its own. The clock is frozen, so that no wait ends by itself.
func TestMuxesDoNotWaitForOtherHosts(t *testing.T) {
	r := newRigAt(t, store.NewMemory(), clock.NewFake(time.Now()))
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), web(1))
	one, two := r.raw("host1", "host"), r.raw("host2", "host")
	obey(t, one, receive(t, one).Revision)
	old := receive(t, two).Revision
	mux := r.raw("mux1", "mux")
	receive(t, mux)

	moved := web(1)
	moved.Endpoints[0].Backends[0].Port = 9000
	last := r.apply(moved).Revision
	if up := receive(t, one); up.Revision != last {
		t.Fatalf("host1: %v", up)
	}
	obey(t, one, last)
	if up := receive(t, mux); up.Revision != last {
		t.Fatalf("mux: %v", up)
	}

	// A change of its own that it has not received yet does.
	last = r.apply(web(1, 2)).Revision
	if up := receive(t, two); up.Revision != last {
		t.Fatalf("host2: %v", up)
	}
	obey(t, one, last)
	obey(t, two, old)
	drained := web(1, 2)
	drained.Endpoints[0].Backends[0].Drain = true
	last = r.apply(drained).Revision
	obey(t, two, last)
	if up := receive(t, mux); up.Revision != last {
		t.Fatalf("mux: %v: must hear of both changes at once", up)
	}
}

// TestChangesWaitAlone: changes that a host has not applied delay neither changes that do not
// concern it, nor verdicts. The clock is frozen, so that no wait ends by itself.
func TestChangesWaitAlone(t *testing.T) {
	r := newRigAt(t, store.NewMemory(), clock.NewFake(time.Now()))
	other := web(1)
	other.Name, other.VIPs = "other", []netip.Addr{netip.MustParseAddr("203.0.113.11")}
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), web(1), other)
	one, two := r.raw("host1", "host"), r.raw("host2", "host")
	obey(t, one, receive(t, one).Revision)
	obey(t, two, receive(t, two).Revision)
	mux := r.raw("mux1", "mux")
	before := receive(t, mux).Revision

	held := r.apply(web(1, 2)).Revision
	if up := receive(t, two); up.Revision != held {
		t.Fatalf("host2: %v", up)
	}
	other.Endpoints[0].Backends[0].Weight = 7 // concerns no host
	r.apply(other)
	up := receive(t, mux)
	if len(up.Upsert) != 1 || up.Upsert[0].GetEndpoint().GetVip() != "203.0.113.11" || up.Revision < before || up.Revision >= held {
		t.Fatalf("mux: %v: must be the other service's endpoint, at a revision before %d", up, held)
	}
	// The first host, which has the other service's server, reports its health.
	said := &apiv1.EndpointHealth{Vip: "203.0.113.11", Protocol: "tcp", Port: 80, Alive: []uint32{0}}
	if err := one.Send(&apiv1.NodeReport{SyncedRevision: before, Health: &apiv1.HealthReport{Full: true, Endpoints: []*apiv1.EndpointHealth{said}}}); err != nil {
		t.Fatal(err)
	}
	if up := receive(t, mux); len(up.GetHealth().GetEndpoints()) != 1 || len(up.Upsert) != 0 {
		t.Fatalf("mux: %v: must be verdicts", up)
	}
	other.Endpoints[0].Backends[0].Port = 9000 // concerns the first host, which applies it
	last := r.apply(other).Revision
	obey(t, one, receive(t, one).Revision)
	if up := receive(t, mux); len(up.Upsert) != 1 || up.Upsert[0].GetEndpoint().GetVip() != "203.0.113.11" || up.Revision >= held {
		t.Fatalf("mux: %v: must be the other service's endpoint, at a revision before %d", up, held)
	}
	obey(t, two, last)
	if up := receive(t, mux); len(up.Upsert) != 1 || up.Upsert[0].GetEndpoint().GetVip() != "203.0.113.10" || up.Revision != last {
		t.Fatalf("mux: %v: must be what was held, at revision %d", up, last)
	}
}
