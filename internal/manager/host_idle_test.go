package manager_test

import (
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// TestHostIdleReachesHosts checks that a change of hostIdle sends new bindings to the hosts of the
// endpoint's members. Each has the explicit values and no defaults; withdrawn values disappear from
// it. The change does not concern muxes, and makes no ring.
func TestHostIdleReachesHosts(t *testing.T) {
	r := newRigAt(t, store.NewMemory(), clock.NewFake(time.Now()))
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1))
	revision := r.apply(web(1, 2)).Revision
	hosts, mux := []*rawStream{r.raw("host1", "host"), r.raw("host2", "host")}, r.raw("mux1", "mux")
	for _, s := range hosts {
		for _, item := range receive(t, s).Upsert {
			if b := item.GetBinding(); b != nil && b.HostIdle != nil {
				t.Errorf("nobody said a time, but the binding has %v", b.HostIdle)
			}
		}
		obey(t, s, revision)
	}
	generation := func() (out int64) {
		t.Helper()
		up := receiveItems(t, mux)
		if up.Revision != revision {
			t.Errorf("the mux heard of revision %d, want %d alone", up.Revision, revision)
		}
		for _, item := range up.Upsert {
			if ep := item.GetEndpoint(); ep != nil {
				out = ep.Generation
			}
		}
		obey(t, mux, revision)
		return out
	}
	first := generation()
	for _, want := range []lb.HostIdle{{Established: 3 * time.Hour, Closing: 30 * time.Second}, {}} {
		svc := web(1, 2)
		svc.Endpoints[0].HostIdle = want
		revision = r.apply(svc).Revision
		for i, s := range hosts {
			up := receiveItems(t, s)
			if len(up.Upsert) != 1 || len(up.Delete) != 0 || up.Revision != revision {
				t.Fatalf("host%d: %v: want one binding", i+1, up)
			}
			got := up.Upsert[0].GetBinding().GetHostIdle()
			if got.GetEstablished().AsDuration() != want.Established || got.GetClosing().AsDuration() != want.Closing || got.GetOpening() != nil || got.GetUdp() != nil ||
				(got == nil) != (want == lb.HostIdle{}) {
				t.Errorf("host%d: %v, want %v", i+1, got, want)
			}
			obey(t, s, revision)
		}
	}
	// The mux receives the next change that concerns it, and none before.
	svc := web(1, 2)
	svc.Endpoints[0].FailOpen = true
	revision = r.apply(svc).Revision
	if again := generation(); again != first || first == 0 {
		t.Errorf("generation %d, want %d as before", again, first)
	}
}
