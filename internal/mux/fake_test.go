package mux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
)

// journal records the calls of the agent's dependencies in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := j.lines
	j.lines = nil
	return out
}

// tables is a data plane that stores its state.
type tables struct {
	nat     []dataplane.NATAddress // guarded by mu
	journal *journal
	mu      sync.Mutex
	state   dataplane.MuxState
	alive   map[dataplane.MemberKey]bool
	backup  map[lb.EndpointKey]bool
	flows   dataplane.FlowTotals
	swept   int
	hops    map[netip.Addr]dataplane.NextHop
	fail    error
	// room is how many endpoints fit; 0: any number.
	room int
	// changes counts calls of Change.
	changes int
	// schedules are the last ones set. scheduled is the state that Scheduled returns.
	schedules map[lb.EndpointKey]dataplane.Schedule
	scheduled map[lb.EndpointKey]dataplane.Scheduled
	// during runs in the middle of Apply.
	during func()
}

func (f *tables) Apply(s dataplane.MuxState) error {
	if f.during != nil {
		f.during()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	if f.room > 0 && len(s.Endpoints) > f.room {
		return fmt.Errorf("endpoints: %d: must be at most %d", len(s.Endpoints), f.room)
	}
	s, err := s.WithRings(f.state)
	if err != nil {
		return err
	}
	f.state = s
	old := f.alive
	f.alive = map[dataplane.MemberKey]bool{}
	var vips []string
	for _, e := range s.Endpoints {
		vips = append(vips, e.Key.VIP.String())
		for _, m := range e.Members {
			k := dataplane.MemberKey{Endpoint: e.Key, Member: m.ID}
			f.alive[k] = m.Alive
			if was, kept := old[k]; kept {
				f.alive[k] = was
			}
		}
	}
	f.journal.add("tables %v", vips)
	return nil
}

// Change applies the whole state that results from the change.
func (f *tables) Change(c dataplane.MuxChange) error {
	f.mu.Lock()
	next := f.state.Changed(c)
	f.changes++
	f.mu.Unlock()
	slices.SortStableFunc(next.Endpoints, func(a, b dataplane.MuxEndpoint) int { return plan.CompareKeys(a.Key, b.Key) })
	slices.SortStableFunc(next.VIPs, func(a, b dataplane.MuxVIP) int { return a.VIP.Compare(b.VIP) })
	return f.Apply(next)
}

func (f *tables) SetAlive(list []dataplane.MemberAlive) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range list {
		k := dataplane.MemberKey{Endpoint: a.Endpoint, Member: a.Member}
		if was, known := f.alive[k]; known && was != a.Alive {
			f.alive[k] = a.Alive
			f.journal.add("alive %v/%d %v", a.Endpoint.VIP, a.Member, a.Alive)
		}
	}
}

// SetSchedules stores the last schedule of each endpoint.
func (f *tables) SetSchedules(schedules []dataplane.Schedule) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.schedules == nil {
		f.schedules, f.scheduled = map[lb.EndpointKey]dataplane.Schedule{}, map[lb.EndpointKey]dataplane.Scheduled{}
	}
	for _, s := range schedules {
		f.schedules[s.Endpoint] = s
		had := f.scheduled[s.Endpoint]
		for _, l := range s.Loads {
			had.Loads = append(had.Loads, make([]uint64, max(int(l.Member)+1-len(had.Loads), 0))...)
			had.Loads[l.Member] = l.Word
		}
		f.scheduled[s.Endpoint] = had
	}
	return nil
}

func (f *tables) Scheduled(keys []lb.EndpointKey) []dataplane.Scheduled {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]dataplane.Scheduled, len(keys))
	for i, key := range keys {
		out[i] = f.scheduled[key]
	}
	return out
}

func (f *tables) Alive(e lb.EndpointKey, member uint16) (alive, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	alive, known = f.alive[dataplane.MemberKey{Endpoint: e, Member: member}]
	return alive, known
}

func (f *tables) SetNextHops(h map[netip.Addr]dataplane.NextHop) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hops = h
	return nil
}

func (f *tables) Trace(p dataplane.Packet) (dataplane.Trace, error) {
	if len(f.state.Endpoints) == 0 {
		return dataplane.Trace{Verdict: "no_endpoint"}, nil
	}
	e := f.state.Endpoints[0]
	return dataplane.Trace{Verdict: "forwarded", Steps: []string{"endpoint found", "its slot"}, Endpoint: e.Key, Member: e.Members[0].ID, Outer: e.Members[0].Outer}, nil
}

func (f *tables) Counters() (dataplane.MuxCounters, error) { return dataplane.MuxCounters{}, nil }
func (f *tables) Rings(e lb.EndpointKey) (main, backup []uint16) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state.Rings(e)
}

func (f *tables) Close() error { return nil }

func (f *tables) SetNATAddresses(a []dataplane.NATAddress) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nat = slices.Clone(a)
	return nil
}

func (*tables) NATUse() (used, capacity uint64) { return 0, 0 }

// speaker is a fake that records its announcements in the journal.
type speaker struct {
	bgp.Fake
	journal *journal
}

func (s *speaker) Set(ctx context.Context, want bgp.State) error {
	before := s.State()
	err := s.Fake.Set(ctx, want)
	if err == nil && !slices.Equal(before.Routes, want.Routes) {
		var words []string
		for _, r := range want.Routes {
			word := r.Prefix.Addr().String()
			if r.Graceful {
				word += " graceful"
			}
			words = append(words, word)
		}
		s.journal.add("routes %v", words)
	}
	return err
}

// prober stores its targets, and those that were resumed.
type prober struct{ targets, resumed []probe.Target }

func (p *prober) Resume(t []probe.Target) error {
	p.resumed = append(p.resumed, t...)
	return nil
}

func (p *prober) Stats() probe.Stats { return probe.Stats{Targets: len(p.targets)} }

func (p *prober) Set(t []probe.Target) error { p.targets = t; return nil }

func (p *prober) Change(start, stop []probe.Target) error {
	p.targets = slices.DeleteFunc(p.targets, func(t probe.Target) bool { return slices.Contains(stop, t) })
	p.targets = append(p.targets, start...)
	return nil
}

type hops struct{ want []netip.Addr }

func (h *hops) Want(w []netip.Addr) { h.want = w }

// world is an agent with all of its dependencies.
type world struct {
	*journal
	t       *testing.T
	clock   *clock.Fake
	tables  *tables
	watch   func(dataplane.WatchFilter) (Watcher, error)
	speaker *speaker
	prober  *prober
	hops    *hops
	agent   *Agent
	built   []string
	files   map[string]string
	run     string
	grace   time.Duration // Options.Grace of the next agent
	leases  *Leases       // Options.Leases of the next agent
}

func newWorld(t *testing.T) *world {
	j := &journal{}
	w := &world{
		journal: j, t: t, clock: clock.NewFake(time.Unix(1000, 0)),
		tables: &tables{journal: j}, speaker: &speaker{journal: j}, prober: &prober{}, hops: &hops{},
		files: map[string]string{"/etc/md5": "secret\nmore\n"}, run: t.TempDir(),
	}
	w.restart()
	return w
}

// restart replaces the agent; tables, routes and files stay.
func (w *world) restart() {
	w.t.Helper()
	a, err := New(Options{
		Tables: w.tables, Prober: w.prober, Hops: w.hops, Speaker: w.speaker, Clock: w.clock,
		Ensure: func(context.Context) (bool, error) { return false, nil },
		RunDir: w.run, DrainWait: 2 * time.Second, Grace: w.grace, Watch: w.watch, Leases: w.leases,
		Links: func() []agent.Link { return []agent.Link{{Name: "eth0", MTU: 1500}, {Name: "eth1", MTU: 9000}} },
		Ring: func(code uint8, members []plan.Member) []uint16 {
			w.built = append(w.built, fmt.Sprintf("%d of %d", 1<<code, len(members)))
			return make([]uint16, 1<<code)
		},
		ReadFile: func(name string) ([]byte, error) {
			if data, ok := w.files[name]; ok {
				return []byte(data), nil
			}
			return nil, errors.New("no such file")
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.agent = a
}

func (w *world) apply(p plan.Plan) {
	w.t.Helper()
	if err := w.agent.Apply(context.Background(), p); err != nil {
		w.t.Fatal(err)
	}
	w.agent.Speak(context.Background())
}

// probe reports one result for a backend.
func (w *world) probe(dip string, good bool, words string) {
	w.t.Helper()
	for _, target := range w.prober.targets {
		if target.Address.Addr() == netip.MustParseAddr(dip) {
			w.agent.Probed([]probe.Result{{Target: target, Good: good, Words: words}})
			w.agent.Speak(context.Background())
			return
		}
	}
	w.t.Fatalf("nobody probes %s", dip)
}

func (w *world) expect(what string, lines ...string) {
	w.t.Helper()
	if got := w.take(); !slices.Equal(got, lines) {
		w.t.Fatalf("%s:\n got %q\nwant %q", what, got, lines)
	}
}

// planOf returns a plan with one TCP endpoint on port 80 for each VIP, all with the same backends.
func planOf(vips []string, dips ...string) plan.Plan {
	p := plan.Plan{
		Revision: 1, MTU: 1500,
		Node: lb.Node{
			Name: "mux1", Role: lb.RoleMux,
			Addresses: []netip.Addr{netip.MustParseAddr("10.10.0.11"), netip.MustParseAddr("2001:db8:10::11")},
			BGP: &lb.BGP{ASN: 65010, Peers: []lb.BGPPeer{
				{Address: netip.MustParseAddr("10.10.0.1"), ASN: 65000, PasswordFile: "/etc/md5", BFD: &lb.BFD{Multiplier: 3}},
			}},
		},
		RingKeys: []plan.Key{{ID: 3, Key: [16]byte{1}}},
	}
	for _, v := range vips {
		e := plan.Endpoint{
			Key:     lb.EndpointKey{VIP: netip.MustParseAddr(v), Protocol: lb.TCP, Port: 80},
			Service: "web", Generation: 1, RingCode: 6, KeyID: 3,
			Health: lb.Health{Checks: []lb.Check{{Kind: lb.CheckTCP, Interval: time.Second, Timeout: time.Second, Rise: 2, Fall: 2}}, From: lb.FromMux},
		}
		for i, d := range dips {
			a := netip.MustParseAddr(d)
			e.Members = append(e.Members, plan.Member{ID: uint16(i + 1), DIP: a, Port: 8080, Weight: 1, Outer: a})
		}
		p.Endpoints = append(p.Endpoints, e)
	}
	return p
}

func compareTargets(a, b probe.Target) int {
	text := func(t probe.Target) string {
		if t.Tunnel == (unique.Handle[probe.Tunnel]{}) {
			return fmt.Sprint(t.Check.Value())
		}
		return fmt.Sprint(t.Check.Value(), t.Tunnel.Value())
	}
	if c := a.Address.Compare(b.Address); c != 0 {
		return c
	}
	return strings.Compare(text(a), text(b))
}

func result(t probe.Target, good bool) probe.Result {
	return probe.Result{Target: t, Good: good, Words: "drawn"}
}

func (f *tables) SetBackup(on map[lb.EndpointKey]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, use := range on {
		if f.backup[k] != use {
			f.journal.add("backup %v %v", k.VIP, use)
		}
	}
	if f.backup == nil {
		f.backup = map[lb.EndpointKey]bool{}
	}
	maps.Copy(f.backup, on)
}

func (f *tables) Sweep() (dataplane.FlowTotals, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.swept++
	return f.flows, nil
}

// Flows returns one flow of every member of the first endpoint.
func (t *tables) Flows(_ context.Context, of []lb.EndpointKey, most int) ([][]dataplane.Flow, error) {
	out := make([][]dataplane.Flow, len(of))
	for i := range of {
		for _, m := range t.state.Endpoints[0].Members {
			if most > 0 {
				out[i] = append(out[i], dataplane.Flow{Member: m.ID, Class: dataplane.FlowTrusted})
				most--
			}
		}
	}
	return out, nil
}

func (*tables) Pressure() []dataplane.TablePressure {
	return []dataplane.TablePressure{{Name: "flows", Used: 3, Capacity: 64}}
}
