package dataplane

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/ring"
)

// Tables so small that flows collide, slots are not where they are looked for first, and members move.
var fuzzLimits = MuxLimits{Endpoints: 64, RingWords: 8192, Members: 1024, Backends: 256, Flows: 256, Sources: 8192, SNAT: 2, QUIC: 64, Probes: fuzzProbes}

// fuzz is a mux, its model, and the generator that drives both.
type fuzz struct {
	*muxFixture
	r       *rand.Rand
	gen     *fuzzFrames
	seed    uint64
	step    int
	backups map[lb.EndpointKey]bool // what the ring word of an endpoint is to say
	options ebpf.RunOptions
	context xdpContext
	out     []byte
	number  map[string]int // of a reason
	wanted  []uint64       // counted reasons, by number
	counts  map[lb.EndpointKey]*fuzzCount
	seen    fuzzSeen
	vips    map[netip.Addr]fuzzVIP
	entered []modelFragmentKey // fragments in the program's table
	hz      uint64
	held    held
	// probes have a generator of their own: they change nothing of what the others draw.
	pr *rand.Rand
	// sr is that of schedulers, likewise.
	sr *rand.Rand
	// cr is that of cookies, likewise.
	cr *rand.Rand
	// qr is that of connection ids, likewise.
	qr *rand.Rand
	sn fuzzSNAT

	// Of all episodes.
	packets, states, sweeps uint64
	met                     []uint64
	// failed is called with a difference; it does not return. What broke it is known to tests that look for one.
	failed func(difference string)
}

// newFuzz loads the program once for all episodes.
func newFuzz(t testing.TB) *fuzz {
	f, err := openFuzz(t, nil)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	return f
}

// openFuzz is newFuzz with a change of the program.
func openFuzz(t testing.TB, change func(*ebpf.CollectionSpec)) (*fuzz, error) {
	m, err := OpenMux(MuxOptions{
		Address: muxSelf, Limits: fuzzLimits, testClock: true, testSpec: change,
		DeviceMAC: func(i int) ([6]byte, error) { return testMAC(i), nil },
	})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { m.Close() })
	f := &fuzz{muxFixture: &muxFixture{t: t, mux: m}, out: make([]byte, 16<<10), number: map[string]int{}}
	for i, r := range MuxReasons().All {
		f.number[r.Name] = i
	}
	f.met = make([]uint64, len(MuxReasons().All))
	f.gen = newFuzzFrames(f)
	f.hz = m.tables.guards.hz
	f.failed = func(difference string) {
		t.Fatalf("seed %d, packet %d: %s%s\nagain: go test ./internal/dataplane -run DifferentialFuzz -fuzzseed %d -fuzzpackets %d",
			f.seed, f.step, difference, f.explain(), f.seed, f.step+1)
	}
	return f, nil
}

// differ ends the run.
func (f *fuzz) differ(format string, args ...any) { f.failed(fmt.Sprintf(format, args...)) }

// begin makes all tables, and the agent's knowledge of them, as they are when the program was just loaded. All else that
// an episode depends on is its seed.
func (f *fuzz) begin(seed uint64) {
	for _, k := range f.entered {
		must(f.t, f.mux.objects.Fragments.Delete(rawFragmentKey(k)))
	}
	f.entered = f.entered[:0]
	m := f.mux.memory
	for _, b := range m.mapped {
		clear(b)
	}
	f.mux.tables, f.held = newMuxTables(m, f.mux.tables.tick, f.hz), held{}
	f.mux.tables.hops.mac = func(i int) ([6]byte, error) { return testMAC(i), nil }
	must(f.t, f.mux.objects.OwnMacs.Set([8]uint64{2: macWord(fuzzOtherSelf)}))
	m.config.AbiVersion = uint32(muxLimitLIMIT_ABI_VERSION)
	f.seed, f.step, f.r = seed, 0, rand.New(rand.NewPCG(seed, 1))
	m.config.FlowKey.K0, m.config.FlowKey.K1 = f.r.Uint64(), f.r.Uint64()
	f.model = &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress, macs: [][6]byte{muxSelf, fuzzOtherSelf}, schedules: newModelSchedules()}
	f.sr, f.cr = rand.New(rand.NewPCG(seed, 3)), rand.New(rand.NewPCG(seed, 4))
	f.qr = rand.New(rand.NewPCG(seed, 5))
	f.model.policy = modelPolicy{hz: f.hz, packets: map[netip.Addr]*bucketModel{}, flows: map[netip.Addr]*bucketModel{}}
	f.model.flows = &modelFlows{
		key: ring.Key{K0: m.config.FlowKey.K0, K1: m.config.FlowKey.K1}, spread: ring.Key{K0: m.config.SpreadKey.K0, K1: m.config.SpreadKey.K1}, buckets: make([][8]modelFlow, len(m.flows)),
		shift: f.mux.tickShift, tick: f.mux.tables.tick,
	}
	f.backups, f.counts = map[lb.EndpointKey]bool{}, map[lb.EndpointKey]*fuzzCount{}
	f.wanted = make([]uint64, len(MuxReasons().All))
	f.seen = newFuzzSeen(len(m.flows))
	f.setJiffies(1<<32 + f.r.Uint64N(1<<34))
	f.gen.begin()
	f.beginProbes()
	f.beginSNAT()
}

// episode runs n packets from a seed.
func (f *fuzz) episode(seed uint64, n int) {
	f.t.Helper()
	f.begin(seed)
	f.run(n)
}

// run runs n packets of an episode that has begun.
func (f *fuzz) run(n int) {
	f.t.Helper()
	f.to(f.randomState())
	for f.step = 0; f.step < n; f.step++ {
		f.between()
		frame, linear := f.gen.next()
		f.packet(frame, linear)
		f.probes()
		f.outbound()
		f.quic()
		if f.step&1023 == 1023 {
			f.checkAll()
		}
	}
	f.checkAll()
	f.packets += uint64(n)
	for i, n := range f.wanted {
		f.met[i] += n
	}
}

// between is what happens beside packets.
func (f *fuzz) between() {
	n := f.r.IntN(6000)
	f.randomSchedule()
	if f.gen.burst.left > 0 {
		return
	}
	switch {
	case n < 2:
		f.to(f.mutated(f.model.state))
	case n < 6:
		f.sweep()
	case n < 20:
		f.randomHops()
	case n < 40:
		f.randomBackup()
	case n < 120:
		f.randomFlips()
	case n < 200:
		f.plant()
	case n < 201:
		f.pass(time.Duration(f.r.IntN(1000)) * time.Second)
	case n < 210:
		f.pass(time.Duration(f.r.IntN(60)) * time.Second)
	case n < 400:
		f.pass(time.Duration(f.r.IntN(2000)) * time.Millisecond)
	case n < 1400:
		f.setJiffies(f.model.policy.now + 1 + f.r.Uint64N(3))
	}
}

// randomSchedule gives an endpoint another schedule now and then.
func (f *fuzz) randomSchedule() {
	n := len(f.model.state.Endpoints)
	if f.sr.IntN(100) > 0 || n == 0 {
		return
	}
	e := f.model.state.Endpoints[f.sr.IntN(n)]
	s := Schedule{Endpoint: e.Key, Kind: e.Scheduler}
	if f.sr.IntN(20) == 0 {
		s.Kind = ScheduleKind(f.sr.IntN(4))
	}
	for range f.sr.IntN(9) * f.sr.IntN(9) {
		s.Sequence = append(s.Sequence, uint16(f.sr.IntN(len(e.Members)+2)))
	}
	for range f.sr.IntN(5) {
		l := MemberLoad{Member: uint16(f.sr.IntN(len(e.Members) + 2)), Word: uint64(f.sr.IntN(1000))<<48 | f.sr.Uint64N(5000)}
		if _, there := memberWith(e, l.Member); there {
			s.Loads = append(s.Loads, l)
		}
	}
	if err := f.setSchedule(s); err != nil && !strings.Contains(err.Error(), "no room") {
		f.t.Fatal(err)
	}
}

// beginCursors makes the model know where the cursors of endpoints with a scheduler stand, and lets all CPUs stand at the same place.
func (f *fuzz) beginCursors() {
	for _, e := range f.model.state.Endpoints {
		if e.Scheduler == ScheduleRing {
			continue
		}
		for cell := range f.mux.memory.cursors.of(f.mux.tables.entries[e.Key].index) {
			f.model.schedules.cursors[e.Key] = modelCursor{uint32(*cell), uint32(*cell >> 32)}
		}
	}
	f.alignCursors()
}

// pass lets time pass.
func (f *fuzz) pass(d time.Duration) {
	f.setJiffies(f.model.policy.now + uint64(d)*f.hz/uint64(time.Second))
}

// packet gives a frame, of which so many bytes are in one piece, to program and model. 0: as many as fit.
func (f *fuzz) packet(frame []byte, linear int) {
	for i := 0; i < len(f.mux.memory.datagrams); i += int(muxLimitLIMIT_DATAGRAM_REGION) {
		f.mux.memory.datagrams[i] = f.model.policy.datagrams
	}
	m := f.model
	m.noted, m.linear, m.probes.touched, m.schedules.turned = m.noted[:0], linear, nil, lb.EndpointKey{}
	want := m.walk(frame)
	f.options.Data, f.options.DataOut, f.options.Context = frame, f.out, nil
	if linear > 0 {
		f.context = xdpContext{DataEnd: uint32(linear)}
		f.options.Context = &f.context
	}
	verdict, err := f.mux.Program().Run(&f.options)
	must(f.t, err)
	if verdict != want.verdict || !bytes.Equal(f.options.DataOut, want.frame) {
		f.differ("frame %x, %d bytes in one piece:\ngot  verdict %d, %x (%v)\nwant verdict %d, %x (%s)", frame, linear, verdict,
			f.options.DataOut, f.counted(), want.verdict, want.frame, want.reason)
		return
	}
	f.wanted[f.number[want.reason]]++
	if what := wrongClass(want.reason, verdict, m.noted); what != "" {
		f.differ("frame %x: %s", frame, what)
	}
	for _, name := range m.noted {
		f.wanted[f.number[name]]++
	}
	if what := f.wrongCursor(); what != "" {
		f.differ("frame %x: %s", frame, what)
	}
	if what := f.compare(); what != "" {
		f.differ("frame %x, %d bytes in one piece (%s, %v; the program counted %v): %s", frame, linear, want.reason, m.noted, f.counted(), what)
	}
}

// explain tells the endpoint of the last packet, its members, and what the flow table has.
func (f *fuzz) explain() string {
	var b strings.Builder
	trail := &f.model.trail
	for _, e := range f.model.state.Endpoints {
		if !trail.counted || e.Key != trail.endpoint {
			continue
		}
		entry := f.mux.tables.entries[e.Key]
		fmt.Fprintf(&b, "\n%v: affinity %d, one packet %v, 3-tuple %v, source /%d /%d %v, idle %v, policy %#x, block %v, moved %v, count %d",
			e.Key, e.Affinity, e.OnePacket, e.Fragments3Tuple, e.SourcePrefix4, e.SourcePrefix6, e.SourceFor, e.Idle, entry.policy, entry.block, entry.moved, entry.count)
		for _, m := range e.Members {
			fmt.Fprintf(&b, "\n  %+v now alive %v word %#x by %v", m, f.model.alive[MemberKey{e.Key, m.ID}],
				*f.mux.tables.word(entry, m.ID), f.model.hops[m.Outer])
		}
	}
	for _, i := range trail.buckets {
		fmt.Fprintf(&b, "\nbucket %d, now %#x: %#x\n  %+v", i, f.model.now(), f.mux.memory.flows[i].Entries, f.model.flows.buckets[i])
	}
	return b.String()
}

// counted is how the program's counters of reasons differ from what is expected of them.
func (f *fuzz) counted() (names []string) {
	for i, r := range MuxReasons().All {
		var n uint64
		for cell := range f.mux.memory.reasons.of(uint32(i)) {
			n += *cell
		}
		if n != f.wanted[i] {
			names = append(names, fmt.Sprintf("%s %+d", r.Name, int(n-f.wanted[i])))
		}
	}
	return names
}

// to goes to a state, or stays in the present one when that does not fit.
func (f *fuzz) to(s MuxState) {
	t, model := f.mux.tables, f.model
	blocks := make(map[lb.EndpointKey]block, len(t.entries))
	for key, e := range t.entries {
		blocks[key] = e.block
	}
	before, had := t.sweeps, model.alive
	err := f.apply(s)
	if t.sweeps != before {
		model.forget()
	}
	if err != nil {
		if !strings.Contains(err.Error(), "no room") {
			f.t.Fatal(err)
		}
		f.checkAll()
		return
	}
	f.states++
	f.keepBackups(&s)
	model.schedules.keep(model.state, s)
	model.state, model.indexed, model.alive = s, nil, map[MemberKey]bool{}
	f.beginCursors()
	stays := make(map[lb.EndpointKey]bool, len(s.Endpoints))
	for _, e := range s.Endpoints {
		stays[e.Key] = true
		for _, m := range e.Members {
			key := MemberKey{e.Key, m.ID}
			was, known := had[key]
			model.alive[key] = was || !known && m.Alive
		}
	}
	model.leave(stays)
	model.eachFlow(func(g *modelFlow) {
		if e := t.entries[g.member.Endpoint]; !g.gone && e.block != blocks[g.member.Endpoint] {
			g.moved = true
		}
	})
	f.keepFragments(blocks)
	f.keepCounts(stays)
	f.keepGuards()
	f.checkAll()
}

// apply changes the tables, by what differs or as a whole. The wait for readers is left out nearly always: there are none.
func (f *fuzz) apply(s MuxState) error {
	by, some := changeBetween(f.model.state, s)
	some = some && f.mux.tables.whole && f.step>>1%2 == 0
	if f.one(16) {
		f.held.release()
		defer settle(f.t, f.mux)
		if some {
			return f.mux.Change(by)
		}
		return f.mux.Apply(s)
	}
	c, err := f.held.stageBy(func(crowded bool) (*change, error) {
		if some {
			return f.mux.tables.stageChange(by, crowded)
		}
		return f.mux.tables.stage(s, crowded)
	})
	if err != nil {
		return err
	}
	must(f.t, f.mux.coverAll())
	c.publish()
	must(f.t, f.mux.coverVIPs())
	// Members that moved are counted at two places until then, of which the test knows one.
	f.held.published(c, c.first || f.step%2 == 0)
	return nil
}

// keepBackups makes the state say which rings are in use after it was applied: an endpoint that had no backups begins as
// the state says, others stay as they are.
func (f *fuzz) keepBackups(s *MuxState) {
	was := map[lb.EndpointKey]bool{}
	for _, e := range f.model.state.Endpoints {
		was[e.Key] = len(e.BackupRing) > 0
	}
	next := make(map[lb.EndpointKey]bool, len(s.Endpoints))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if !was[e.Key] && !f.backups[e.Key] {
			f.backups[e.Key] = e.UseBackup
		}
		next[e.Key] = f.backups[e.Key]
		e.UseBackup = next[e.Key]
	}
	f.backups = next
}

// keepFragments: those whose endpoint is gone are forgotten, by the program too, since another one could come to their
// place; those whose members moved are not followed any more.
func (f *fuzz) keepFragments(blocks map[lb.EndpointKey]block) {
	f.entered = slices.DeleteFunc(f.entered, func(k modelFragmentKey) bool {
		first := f.model.edge.fragments[k]
		e := f.mux.tables.entries[first.endpoint.Key]
		if e == nil {
			must(f.t, f.mux.objects.Fragments.Delete(rawFragmentKey(k)))
			delete(f.model.edge.fragments, k)
			return true
		}
		if e.block != blocks[first.endpoint.Key] {
			first.gone = true
			f.model.edge.fragments[k] = first
		}
		return false
	})
}

func (f *fuzz) sweep() {
	f.sweeps++
	expired := f.model.sweep()
	totals, err := f.mux.Sweep()
	must(f.t, err)
	f.model.setOver(totals.Over)
	if totals.Expired != expired {
		f.differ("a sweep found %d idle flows, the model %d", totals.Expired, expired)
		return
	}
	f.checkAll()
}

func (f *fuzz) randomFlips() {
	for range 1 + f.r.IntN(3) {
		e, ok := f.randomEndpoint()
		if !ok || len(e.Members) == 0 {
			return
		}
		m, alive := e.Members[f.r.IntN(len(e.Members))], f.r.IntN(3) != 0
		f.setAlive(MemberAlive{e.Key, m.ID, alive})
	}
}

func (f *fuzz) randomBackup() {
	if n := len(f.model.state.Endpoints); n > 0 {
		e := &f.model.state.Endpoints[f.r.IntN(n)]
		e.UseBackup = f.r.IntN(2) == 0
		f.backups[e.Key] = e.UseBackup
		f.mux.SetBackup(map[lb.EndpointKey]bool{e.Key: e.UseBackup})
	}
}

// randomEndpoint is one of the present state.
func (f *fuzz) randomEndpoint() (MuxEndpoint, bool) {
	if n := len(f.model.state.Endpoints); n > 0 {
		return f.model.state.Endpoints[f.r.IntN(n)], true
	}
	return MuxEndpoint{}, false
}

// plant puts an entry into the flow table that makes some flow of the present state look remembered: by a false match,
// or long ago.
func (f *fuzz) plant() {
	e, ok := f.randomEndpoint()
	if !ok || len(e.Members) == 0 {
		return
	}
	to, _ := f.randomEndpoint()
	hash := f.gen.flowOf(to).entry(f.model.flows.key)
	number := hash % uint64(len(f.model.flows.buckets))
	bucket := &f.model.flows.buckets[number]
	at := f.r.IntN(8)
	if same := slices.IndexFunc(bucket[:], func(g modelFlow) bool { return g.class != 0 && g.fingerprint == hash>>39 }); same >= 0 {
		at = same
	}
	id := e.Members[f.r.IntN(len(e.Members))].ID
	flow := modelFlow{hash >> 39, FlowClass(1 + f.r.IntN(3)), (f.model.now() - uint64(f.r.IntN(40))) & 0xffff, MemberKey{e.Key, id}, false, false}
	bucket[at] = flow
	entry := f.mux.tables.entries[e.Key]
	f.mux.memory.flows[number].Entries[at] = flow.fingerprint<<39 | uint64(entry.block.first+uint32(id))<<18 | uint64(flow.class)<<16 | flow.stamp
}

// wrongClass compares the class of the reason that ended a packet with its verdict, and those of the reasons that were counted in addition with
// ClassInfo. It returns "" if they agree.
func wrongClass(reason string, verdict uint32, also []string) string {
	allowed := map[Class][]uint32{
		ClassDrop: {xdpDrop}, ClassPass: {xdpPass}, ClassTX: {xdpTX, xdpRedirect}, ClassConsumed: {xdpDrop, xdpTX, xdpRedirect},
	}
	class := MuxReasons().Class(reason)
	if !slices.Contains(allowed[class], verdict) {
		return fmt.Sprintf("reason %s of class %q has the verdict %d", reason, class, verdict)
	}
	for _, name := range also {
		if class := MuxReasons().Class(name); class != ClassInfo {
			return fmt.Sprintf("reason %s of class %q was counted in addition to %s", name, class, reason)
		}
	}
	return ""
}
