package manager

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// counting is a store that counts the transactions that write.
type counting struct {
	store.Store
	writes atomic.Int64
}

func (c *counting) Txn(ctx context.Context, t store.Txn) (store.TxnResult, error) {
	c.writes.Add(1)
	return c.Store.Txn(ctx, t)
}

// kept is a manager whose clock the test advances. Only the test runs its keeper.
type kept struct {
	t     *testing.T
	path  string
	store *counting
	clock *clock.Fake
	m     *Manager
	k     *keeper
	// words is the LastCheck text of each member in the muxes' reports.
	words string
	// stop ends the manager.
	stop    func()
	streams uint64
}

func newKept(t *testing.T) *kept {
	k := &kept{t: t, path: t.TempDir(), store: &counting{Store: store.NewMemory()}, clock: clock.NewFake(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))}
	k.start()
	t.Cleanup(func() { k.stop() })
	return k
}

func (k *kept) start() {
	k.t.Helper()
	dir, err := OpenDataDir(k.path)
	if err != nil {
		k.t.Fatal(err)
	}
	k.m, err = Open(k.t.Context(), Options{Dir: dir, Store: k.store, Name: "m1", Listen: "127.0.0.1:1", Clock: k.clock, keepNothing: true})
	if err != nil {
		k.t.Fatal(err)
	}
	k.k = newKeeper(k.m)
	k.m.view.subscribe(k.k)
	k.k.note(change{endpoints: k.m.view.endpointKeys()})
	k.stop = func() {
		k.m.Close()
		dir.Close()
	}
}

func (k *kept) apply(objs ...lb.Object) {
	k.t.Helper()
	var in []*apiv1.Object
	for _, o := range objs {
		lb.SetDefaults(o)
		in = append(in, convert.ToObject(o))
	}
	if _, _, err := k.m.apply(k.t.Context(), &apiv1.ApplyRequest{Objects: in}); err != nil {
		k.t.Fatal(err)
	}
}

// round runs the keeper once at the present time.
func (k *kept) round() bool {
	k.t.Helper()
	wrote, err := k.k.round(k.t.Context())
	if err != nil {
		k.t.Fatal(err)
	}
	return wrote
}

// say sends a report of a mux: all members of all endpoints are alive except those whose last byte
// is in dead.
func (k *kept) say(mux string, dead ...byte) {
	k.streams++
	var members []*apiv1.MemberStatus
	k.m.view.mu.RLock()
	for key, st := range k.m.view.state.Endpoints {
		for _, m := range st.Members {
			alive := true
			for _, d := range dead {
				alive = alive && m.Backend.DIP.As4()[3] != d
			}
			members = append(members, &apiv1.MemberStatus{
				Vip: key.VIP.String(), Protocol: key.Protocol.String(), Port: uint32(key.Port), PortEnd: uint32(key.PortEnd),
				Member: uint32(m.ID), Alive: alive, LastCheck: k.words,
			})
		}
	}
	k.m.view.mu.RUnlock()
	k.m.opinions.report(&session{name: mux, role: lb.RoleMux, ctx: context.Background(), number: k.streams}, members, k.clock.Now())
}

// state formats the members of an endpoint: weight, and whether they are down.
func (k *kept) state(port uint16) string {
	k.m.view.mu.RLock()
	defer k.m.view.mu.RUnlock()
	var out []string
	for _, m := range k.m.view.state.Endpoints[lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.1"), Protocol: lb.TCP, Port: port}].Members {
		word := fmt.Sprint(m.Weight)
		if m.Down {
			word += " down"
		}
		out = append(out, word)
	}
	return strings.Join(out, ", ")
}

func (k *kept) expect(want string) {
	k.t.Helper()
	if got := k.state(80); got != want {
		k.t.Errorf("members: %s; want %s", got, want)
	}
}

// crowd returns services with one VIP each, and their endpoints and backends.
func crowd(services, endpoints, backends int) []lb.Object {
	out := []lb.Object{&lb.Network{Name: "main", VIPs: []netip.Prefix{netip.MustParsePrefix("203.0.0.0/16")}}}
	for i := range services {
		s := &lb.Service{Name: fmt.Sprintf("s%d", i), VIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113 + byte(i>>8), byte(i + 1)})}}
		for port := range endpoints {
			e := lb.Endpoint{Protocol: lb.TCP, Port: 80 + uint16(port), RepairWindow: new(time.Duration(0))}
			for b := range backends {
				e.Backends = append(e.Backends, lb.Backend{DIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(b + 1)})}, Host: netip.MustParseAddr("10.99.0.1"), Weight: 1})
			}
			s.Endpoints = append(s.Endpoints, e)
		}
		out = append(out, s)
	}
	return out
}

func TestDeadMembersAreBakedIn(t *testing.T) {
	k := newKept(t)
	k.apply(crowd(1, 1, 3)...)
	k.say("mux1")
	k.say("mux2")
	k.round()
	k.say("mux1", 1)
	k.clock.Advance(DefaultDownAfter)
	k.round()
	k.expect("1, 1, 1") // mux2 does not report it dead
	k.say("mux2", 1)
	k.round()
	if due := k.k.due; len(due) != 1 {
		t.Errorf("due: %v, want the endpoint's", due)
	}
	k.clock.Advance(DefaultDownAfter - 1)
	k.round()
	k.expect("1, 1, 1")
	k.clock.Advance(1)
	k.round()
	k.expect("1 down, 1, 1")
	k.stop()
	k.start() // no report has arrived yet
	k.clock.Advance(time.Hour)
	k.round()
	k.expect("1 down, 1, 1")
	k.say("mux1", 1, 2, 3)
	k.round()
	k.expect("1, 1, 1") // no other member is left for the ring
	k.say("mux1", 2)
	k.round()
	k.expect("1, 1, 1")
	k.clock.Advance(DefaultDownAfter)
	k.round()
	k.expect("1, 1 down, 1")
	k.say("mux2")
	k.round()
	k.expect("1, 1, 1") // one mux is enough
}

func TestSlowStartOfNewAndReturned(t *testing.T) {
	k := newKept(t)
	objs := crowd(1, 1, 2)
	svc := objs[1].(*lb.Service)
	svc.Endpoints[0].SlowStart = 100 * time.Second
	k.apply(objs...)
	k.expect("1, 1")
	more := crowd(1, 1, 3)[1].(*lb.Service)
	more.Endpoints[0].SlowStart = 100 * time.Second
	k.apply(more)
	k.expect("10, 10, 1")
	k.clock.Advance(30 * time.Second)
	k.round()
	k.expect("10, 10, 3")
	k.stop()
	k.clock.Advance(20 * time.Second)
	k.start()
	k.round()
	k.clock.Advance(10 * time.Second)
	k.round()
	k.expect("10, 10, 6")
	k.say("mux1")
	k.clock.Advance(40 * time.Second)
	k.round()
	k.expect("1, 1, 1")
	k.say("mux1", 2)
	k.round()
	k.clock.Advance(time.Second)
	k.say("mux1")
	k.round()
	k.expect("10, 1, 10")
	k.clock.Advance(100 * time.Second)
	k.round()
	k.expect("1, 1, 1")
	if len(k.k.due) != 0 || k.round() {
		t.Errorf("due at the end: %v", k.k.due)
	}
}

// TestHostsForgetInTime: when the window is over, the leader removes previous owners from the
// state. The ring does not change.
func TestHostsForgetInTime(t *testing.T) {
	k := newKept(t)
	objs := crowd(1, 1, 2)
	svc := objs[1].(*lb.Service)
	svc.Endpoints[0].RepairWindow = new(time.Hour)
	k.apply(objs...)
	svc.Endpoints[0].Backends[0].Weight = 5
	k.apply(svc)
	remembered := func() (n int, generation int64) {
		for _, st := range k.m.view.state.Endpoints {
			n, generation = len(st.History), st.Generation
		}
		return n, generation
	}
	n, generation := remembered()
	if n != 1 {
		t.Fatalf("%d memberships are remembered", n)
	}
	k.round()
	k.clock.Advance(time.Hour)
	k.round()
	if n, after := remembered(); n != 0 || after != generation {
		t.Errorf("%d memberships are remembered in generation %d, before %d", n, after, generation)
	}
	if len(k.k.due) != 0 {
		t.Errorf("due at the end: %v", k.k.due)
	}
}

func TestDrainHasALimit(t *testing.T) {
	k := newKept(t)
	objs := crowd(1, 1, 2)
	ep := &objs[1].(*lb.Service).Endpoints[0]
	ep.DrainTimeout = time.Minute
	k.apply(objs...)
	ep.Backends[0].Drain = true
	k.apply(objs...)
	k.expect("0, 1")
	decided := slices.DeleteFunc(k.m.view.decisions(k.m.reports.seen, nil), func(d *apiv1.MemberDecision) bool { return d.GetDraining() == nil })
	if len(decided) != 1 || decided[0].GetShare() != 0 || decided[0].GetDrained().AsTime().Sub(decided[0].GetDraining().AsTime()) != time.Minute {
		t.Errorf("decisions: %v", decided)
	}
	k.clock.Advance(time.Minute)
	k.round()
	k.expect("1")
	k.apply(objs...)
	k.expect("1")
	ep.Backends[0].Drain = false
	k.apply(objs...)
	k.expect("1, 1")
}

// TestFlipsAreBatched: 20,000 members that fail and recover cause few writes.
func TestFlipsAreBatched(t *testing.T) {
	k := newKept(t)
	k.apply(crowd(200, 10, 10)...)
	k.say("mux1")
	k.round()
	for _, dead := range [][]byte{{1, 2, 3, 4, 5, 6, 7, 8, 9}, nil} {
		before := k.store.writes.Load()
		k.say("mux1", dead...)
		k.round()
		k.clock.Advance(DefaultDownAfter)
		k.round()
		if n := k.store.writes.Load() - before; n < 1 || n > 2 {
			t.Errorf("%d transactions, want one or two", n)
		}
	}
	k.expect("1, 1, 1, 1, 1, 1, 1, 1, 1, 1")
	if k.round() {
		t.Error("there is more to write")
	}
}
