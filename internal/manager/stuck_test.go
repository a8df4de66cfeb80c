package manager_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/manager"
	"github.com/shuntlb/shunt/internal/store"
)

// TestStuckNodeHoldsUpNobody: a node does not read during 3,000 changes of 4 kB each. It does not
// delay other nodes, and costs the manager no memory. After the node's timeout its stream is ended,
// and it can reconnect.
func TestStuckNodeHoldsUpNobody(t *testing.T) {
	memory, fake := store.NewMemory(), clock.NewFake(time.Now())
	r := newRigAt(t, memory, fake)
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), muxNode(2), wide(0))
	stuck, reader := r.raw("mux1", "mux"), r.raw("mux2", "mux")
	receive(t, stuck)
	receive(t, reader)
	changes := func(from, to int) (last int64) {
		for i := from; i < to; i++ {
			last = r.apply(wide(i + 1)).Revision
			if up := receive(t, reader); up.Revision != last || len(up.Upsert) != 1 || up.Upsert[0].GetEndpoint().GetMembers()[0].GetWeight() != uint32(i%2+1) {
				t.Fatalf("change %d: %v, want revision %d", i, up, last)
			}
		}
		if err := memory.Compact(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		return last
	}
	changes(0, 100) // the stream is full
	before := liveHeap()
	last := changes(100, 3000)
	if after := liveHeap(); after > before+4<<20 {
		t.Errorf("the heap grew from %d to %d bytes: a node that does not read must not cost memory", before, after)
	}
	// Its timeout passes; the check runs once a second.
	for passed := time.Duration(0); passed < manager.DefaultNodeTimeout+2*time.Second; passed += time.Second {
		fake.Advance(time.Second)
		runtime.Gosched()
	}
	r.statusWhile("mux1", func() { fake.Advance(time.Second) }, func(st *apiv1.NodeStatus) bool { return !st.Connected })
	for {
		if _, err := stuck.Receive(); err != nil {
			if connect.CodeOf(err) == connect.CodeCanceled {
				t.Errorf("its stream ended with %v", err)
			}
			break
		}
	}
	if up := receive(t, r.raw("mux1", "mux")); !up.Snapshot || up.Revision != last {
		t.Errorf("it came again and got %v", up)
	}
}

// statusWhile polls the status until it fits, and calls do before each attempt.
func (r *rig) statusWhile(node string, do func(), fits func(*apiv1.NodeStatus) bool) {
	r.t.Helper()
	r.status(node, func(st *apiv1.NodeStatus) bool { do(); return fits(st) })
}

// liveHeap returns the size of the heap in use. Pools release their memory at the second
// collection.
func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// wide is a service of one endpoint with 60 backends.
func wide(step int) *lb.Service {
	s := web(1)
	s.Endpoints[0].Backends = nil
	for i := range 60 {
		b := backend(1)
		b.DIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 20, 1, byte(20 + i)})}
		b.Weight = uint16((step+1)%2 + 1)
		s.Endpoints[0].Backends = append(s.Endpoints[0].Backends, b)
	}
	lb.SetDefaults(s)
	return s
}

// TestVerdictsReachMuxes: a host's verdicts on members reach the connected muxes and new ones, and
// withdrawn verdicts become unknown.
func TestVerdictsReachMuxes(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), muxNode(2), several(1, 3))
	host, mux := r.raw("host1", "host"), r.raw("mux1", "mux")
	rev := receive(t, host).Revision
	receive(t, mux)
	say := func(full bool, alive, dead []uint32) {
		t.Helper()
		h := &apiv1.HealthReport{Full: full, Endpoints: []*apiv1.EndpointHealth{{Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Alive: alive, Dead: dead}}}
		if err := host.Send(&apiv1.NodeReport{SyncedRevision: rev, Health: h}); err != nil {
			t.Fatal(err)
		}
	}
	hears := func(s *rawStream, full bool, alive, dead, unknown string) {
		t.Helper()
		h := receive(t, s).GetHealth()
		if h.GetFull() != full || len(h.GetEndpoints()) != 1 {
			t.Fatalf("heard %v", h)
		}
		e := h.Endpoints[0]
		if e.Vip != "203.0.113.10" || e.Port != 80 || numbers(e.Alive) != alive || numbers(e.Dead) != dead || numbers(e.Unknown) != unknown {
			t.Fatalf("heard %v, want alive %s, dead %s, unknown %s", h, alive, dead, unknown)
		}
	}
	say(true, []uint32{0, 2}, []uint32{1})
	hears(mux, false, "0 2", "1", "")
	say(false, []uint32{1}, nil)
	hears(mux, false, "1", "", "")
	late := r.raw("mux2", "mux")
	hears(late, true, "0 1 2", "", "")
	say(true, nil, []uint32{0})
	hears(mux, false, "", "0", "1 2")
	hears(late, false, "", "0", "1 2")
}

func numbers(ids []uint32) string { return strings.Trim(fmt.Sprint(ids), "[]") }
