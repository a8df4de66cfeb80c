package dataplane

import (
	"fmt"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// flowEndpointOf has n members.
func flowEndpointOf(port uint16, n int) MuxEndpoint {
	outers := make([]string, n)
	for i := range outers {
		outers[i] = fmt.Sprintf("10.20.%d.11", i+1)
	}
	return flowEndpoint(port, outers...)
}

// plan is a state with these endpoints.
func planOf(endpoints ...MuxEndpoint) MuxState {
	return MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: endpoints}
}

// newSweepFixture has an endpoint with flows whose members moved once.
func newSweepFixture(t *testing.T) *muxFixture {
	f := newMuxFixture(t)
	must(t, f.mux.Apply(planOf(flowEndpointOf(80, 3))))
	settle(t, f.mux)
	must(t, f.mux.SetNextHops(hopsTo(planOf(flowEndpointOf(80, 20)))))
	for port := range uint16(100) {
		f.run(tcpSegment(80, 1000+port, wire.SYN).Frame())
	}
	must(t, f.mux.Apply(planOf(flowEndpointOf(80, 5))))
	settle(t, f.mux)
	return f
}

// live is the number of flows that the endpoint on port 80 has.
func (f *muxFixture) live() int {
	f.t.Helper()
	flows, err := f.mux.listFlows(flowEndpointOf(80, 1).Key, 1000)
	must(f.t, err)
	return len(flows)
}

// TestEndpointGoesDuringASweep: what the sweep would free at its end has gone another way meanwhile.
func TestEndpointGoesDuringASweep(t *testing.T) {
	f := newSweepFixture(t)
	tables := f.mux.tables
	s := tables.newSweep(nil)
	if len(s.moved) != 1 {
		t.Fatalf("the sweep found %d endpoints whose members moved, expected 1", len(s.moved))
	}
	must(t, f.mux.Apply(planOf(flowEndpointOf(81, 2))))
	settle(t, f.mux)
	s.chunk(0, 0, false)
	s.end()
	tables.sweepNow()
	must(t, f.mux.Apply(MuxState{}))
	settle(t, f.mux)
	tables.sweepNow()
	f.checkEmpty()
}

// TestMembersMoveAgainDuringASweep: the sweep must not end the second move, whose flows it has passed already.
func TestMembersMoveAgainDuringASweep(t *testing.T) {
	f := newSweepFixture(t)
	before, tables := f.live(), f.mux.tables
	s := tables.newSweep(nil)
	s.chunk(0, 0, false)
	must(t, f.mux.Apply(planOf(flowEndpointOf(80, 9))))
	settle(t, f.mux)
	s.end()
	if got := f.live(); got != before {
		t.Errorf("%d flows before the members moved, %d after", before, got)
	}
	tables.sweepNow()
	if got := f.live(); got != before {
		t.Errorf("%d flows before the members moved, %d after a sweep", before, got)
	}
	must(t, f.mux.Apply(MuxState{}))
	settle(t, f.mux)
	tables.sweepNow()
	f.checkEmpty()
}

// TestSweepWithAnOldClock: a sweep that had to wait has an older time than the flows that came meanwhile.
func TestSweepWithAnOldClock(t *testing.T) {
	f := newSweepFixture(t)
	before := f.live()
	tick, err := f.mux.now()
	must(t, err)
	s := f.mux.tables.newSweep(nil)
	s.chunk(0, tick-30, true)
	s.end()
	if got := f.live(); got != before {
		t.Errorf("%d flows before the sweep, %d after", before, got)
	}
}

// TestSweepWhileAPlanIsStaged: the members of one endpoint have to move again, which sweeps, after another's new policy
// was written down.
func TestSweepWhileAPlanIsStaged(t *testing.T) {
	f := newMuxFixture(t)
	other := func(n int) MuxEndpoint { return flowEndpointOf(81, n) }
	must(t, f.mux.Apply(planOf(flowEndpointOf(80, 3), other(3))))
	settle(t, f.mux)
	must(t, f.mux.Apply(planOf(flowEndpointOf(80, 5), other(5))))
	settle(t, f.mux)
	changed := flowEndpointOf(80, 5)
	changed.Idle = lb.Idle{Untrusted: 40 * time.Second, Trusted: 400 * time.Second}
	must(t, f.mux.Apply(planOf(changed, other(20))))
	settle(t, f.mux)
	e := f.mux.tables.entries[changed.Key]
	if e.flags()&muxEndpointFlagENDPOINT_MOVED != 0 && e.moved.words == 0 {
		t.Errorf("the endpoint says that its members moved: %+v", e)
	}
	must(t, f.mux.Apply(planOf(changed, other(20), flowEndpointOf(82, 3))))
	settle(t, f.mux)
	f.readopt()
}

// TestRingsChangeInAFullTable: rings that have no room beside themselves are changed where they are.
func TestRingsChangeInAFullTable(t *testing.T) {
	f := newMuxFixture(t)
	var first, second []MuxEndpoint
	for i := range 48 { // 48 * 64 of 4096 words
		e := flowEndpointOf(uint16(1000+i), 3)
		e.RingCode = 8
		e.Ring = make([]uint16, 1<<8)
		first = append(first, e)
		e.Ring = make([]uint16, 1<<8)
		for j := range e.Ring {
			e.Ring[j] = uint16(j % 3)
		}
		second = append(second, e)
	}
	must(t, f.mux.Apply(planOf(first...)))
	settle(t, f.mux)
	must(t, f.mux.Apply(planOf(second...)))
	settle(t, f.mux)
	for _, e := range second {
		if r := f.mux.tables.entries[e.Key].rings[0]; !f.mux.tables.ringIs(r, e.RingCode, e.Ring) {
			t.Fatalf("ring of %v is not the wanted one", e.Key)
		}
	}
	f.readopt()
	must(t, f.mux.Apply(MuxState{}))
	settle(t, f.mux)
	f.checkEmpty()
}
