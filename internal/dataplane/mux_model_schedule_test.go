package dataplane

import (
	"slices"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/sched"
	"github.com/shuntlb/shunt/internal/wire"
)

// modelSchedules is what schedulers go by, written down naively.
type modelSchedules struct {
	sequences map[lb.EndpointKey][]uint16
	loads     map[MemberKey]uint64
	// cursors are those of the CPU that the next packet comes by, phase and count: the test makes all CPUs have the same.
	cursors map[lb.EndpointKey]modelCursor
	// turned is the endpoint whose cursor the last packet moved.
	turned lb.EndpointKey
}

type modelCursor struct{ phase, count uint32 }

func newModelSchedules() modelSchedules {
	return modelSchedules{map[lb.EndpointKey][]uint16{}, map[MemberKey]uint64{}, map[lb.EndpointKey]modelCursor{}, lb.EndpointKey{}}
}

// pick is the member of a flow that has none: first says that this may be its first packet, and that it will be remembered.
func (m *muxModel) pick(e MuxEndpoint, hash uint64, first bool) (uint16, bool) {
	if sequence := m.schedules.sequences[e.Key]; first && e.Scheduler != ScheduleRing && len(sequence) > 0 {
		if id, ok := m.scheduled(e, sequence, hash); ok {
			return id, true
		}
	}
	return m.ring(e, hash)
}

// scheduled is what a scheduler says.
func (m *muxModel) scheduled(e MuxEndpoint, sequence []uint16, hash uint64) (uint16, bool) {
	usable := func(id uint16) bool {
		mm, present := memberWith(e, id)
		return present && mm.Choosable && m.alive[MemberKey{e.Key, id}]
	}
	if e.Scheduler == ScheduleNext {
		m.schedules.turned = e.Key
		c := m.schedules.cursors[e.Key]
		c.count++
		defer func() { m.schedules.cursors[e.Key] = c }()
		for range 8 {
			id := sequence[uint64(c.phase)*uint64(len(sequence))>>32]
			c.phase += uint32((1<<32 + len(sequence) - 1) / len(sequence))
			if usable(id) {
				return id, true
			}
		}
		return 0, false
	}
	one, other := sched.Draws(hash, len(sequence))
	drawn := slices.DeleteFunc([]uint16{sequence[one], sequence[other]}, func(id uint16) bool { return !usable(id) })
	if len(drawn) == 0 {
		return 0, false
	}
	id, loads := drawn[0], m.schedules.loads
	if e.Scheduler == ScheduleLighter {
		if len(drawn) == 2 && sched.Lighter(loads[MemberKey{e.Key, id}], loads[MemberKey{e.Key, drawn[1]}]) {
			id = drawn[1]
		}
		if word := loads[MemberKey{e.Key, id}]; word != 0 {
			loads[MemberKey{e.Key, id}] = sched.Given(word)
		}
	}
	return id, true
}

// passed keeps up the load of a member whose flow goes from one class to another.
func (m *muxModel) passed(e MuxEndpoint, member MemberKey, from, to FlowClass, syn bool) {
	word := m.schedules.loads[member]
	if e.Scheduler != ScheduleLighter || len(m.schedules.sequences[e.Key]) == 0 || from == to || word == 0 {
		return
	}
	switch score := word & (1<<48 - 1); {
	case to == FlowClosing && score >= word>>48:
		m.schedules.loads[member] -= word >> 48
	case syn && from == FlowClosing:
		m.schedules.loads[member] = sched.Given(word)
	}
}

// keep is what is left of schedules after a change of the state.
func (s *modelSchedules) keep(before, after MuxState) {
	was := map[lb.EndpointKey]MuxEndpoint{}
	for _, e := range before.Endpoints {
		was[e.Key] = e
	}
	next := newModelSchedules()
	for _, e := range after.Endpoints {
		old, known := was[e.Key]
		if !known {
			continue
		}
		next.cursors[e.Key] = s.cursors[e.Key]
		if old.Scheduler == e.Scheduler && len(s.sequences[e.Key]) > 0 {
			next.sequences[e.Key] = s.sequences[e.Key]
		}
		for _, m := range e.Members {
			if _, there := memberWith(old, m.ID); there && s.loads[MemberKey{e.Key, m.ID}] != 0 {
				next.loads[MemberKey{e.Key, m.ID}] = s.loads[MemberKey{e.Key, m.ID}]
			}
		}
	}
	*s = next
}

// setSchedule gives a schedule to mux and model; the state has its endpoint.
func (f *muxFixture) setSchedule(s Schedule) error {
	f.t.Helper()
	err := f.mux.SetSchedules([]Schedule{s})
	for _, e := range f.model.state.Endpoints {
		if e.Key != s.Endpoint || e.Scheduler != s.Kind || s.Kind == ScheduleRing {
			continue
		}
		for _, l := range s.Loads {
			if _, there := memberWith(e, l.Member); there {
				f.model.schedules.loads[MemberKey{e.Key, l.Member}] = l.Word
			}
		}
		if err == nil {
			f.model.schedules.sequences[e.Key] = s.Sequence
		}
	}
	return err
}

// word is the cursor as it is stored.
func (c modelCursor) word() uint64 { return uint64(c.count)<<32 | uint64(c.phase) }

// alignCursors makes all CPUs stand where the model says.
func (f *muxFixture) alignCursors() {
	for key, at := range f.model.schedules.cursors {
		if e := f.mux.tables.entries[key]; e != nil {
			for cell := range f.mux.memory.cursors.of(e.index) {
				*cell = at.word()
			}
		}
	}
}

// wrongCursor is what is wrong with the cursors that the last packet may have moved: one CPU's, to where the model's is.
func (f *muxFixture) wrongCursor() string {
	s := &f.model.schedules
	if s.turned == (lb.EndpointKey{}) {
		return ""
	}
	want, moved, others := s.cursors[s.turned].word(), 0, map[uint64]int{}
	for cell := range f.mux.memory.cursors.of(f.mux.tables.entries[s.turned].index) {
		if *cell == want {
			moved++
		} else {
			others[*cell]++
		}
		*cell = want
	}
	if moved != 1 || len(others) != 1 {
		return "the cursor was not moved as expected"
	}
	return ""
}

// wrongSchedules compares sequences, loads and cursors of all endpoints.
func (f *muxFixture) wrongSchedules() string {
	s, t := &f.model.schedules, f.mux.tables
	for _, e := range f.model.state.Endpoints {
		entry := t.entries[e.Key]
		if got := t.sequence(entry.sequence); !slices.Equal(got, s.sequences[e.Key]) {
			return "sequence of " + describeKey(e.Key) + " differs"
		}
		word := uint64(0)
		if entry.extra != 0 {
			word = t.mem.extras[entry.extra-1].Schedule
		}
		if seen := sequenceOf(word); seen.length != len(s.sequences[e.Key]) || seen.length > 0 && (seen.kind != e.Scheduler || seen.first != entry.sequence.first) {
			return "sequence word of " + describeKey(e.Key) + " differs"
		}
		for _, m := range e.Members {
			if t.mem.memberLoads[entry.block.first+uint32(m.ID)] != s.loads[MemberKey{e.Key, m.ID}] {
				return "load of a member of " + describeKey(e.Key) + " differs"
			}
		}
		if e.Scheduler == ScheduleRing {
			continue
		}
		for cell := range t.mem.cursors.of(entry.index) {
			if *cell != s.cursors[e.Key].word() {
				return "cursor of " + describeKey(e.Key) + " differs"
			}
		}
	}
	return ""
}

// scheduledEndpoint is flowEndpoint with a scheduler.
func scheduledEndpoint(kind ScheduleKind, outers ...string) MuxEndpoint {
	e := flowEndpoint(80, outers...)
	e.Scheduler = kind
	return e
}

// schedule gives the fixture's first endpoint a sequence, and aligns the cursors.
func (f flowFixture) schedule(sequence []uint16, loads ...MemberLoad) {
	f.t.Helper()
	e := f.model.state.Endpoints[0]
	must(f.t, f.setSchedule(Schedule{Endpoint: e.Key, Kind: e.Scheduler, Sequence: sequence, Loads: loads}))
	f.model.schedules.cursors[e.Key] = f.model.schedules.cursors[e.Key] // also one that nobody moved yet
	f.alignCursors()
}

// TestRoundRobin: connections go to one member after the other, each with all its packets and repeated SYNs.
func TestRoundRobin(t *testing.T) {
	f := newFlowFixture(t, scheduledEndpoint(ScheduleNext, "10.20.1.1", "10.20.2.1", "10.20.3.1"))
	f.schedule([]uint16{0, 1, 2})
	for i := range uint16(12) {
		got := f.send(1000+i, wire.SYN)
		if got.member.Member != i%3 {
			t.Fatalf("connection %d goes to member %d, want %d", i, got.member.Member, i%3)
		}
		for _, flags := range []uint8{wire.SYN, wire.ACK, wire.ACK | wire.FIN} {
			if again := f.send(1000+i, flags); again.member.Member != i%3 {
				t.Fatalf("connection %d goes on at member %d, want %d", i, again.member.Member, i%3)
			}
		}
	}
	// What the table does not know, and does not begin now, is the ring's: other muxes ask that.
	for port := range uint16(20) {
		want, _ := f.model.ring(f.model.state.Endpoints[0], f.ringHash(2000+port))
		if got := f.send(2000+port, wire.ACK); got.member.Member != want {
			t.Fatalf("the middle of a connection goes to member %d, the ring says %d", got.member.Member, want)
		}
	}
	if got, want := f.mux.Scheduled([]lb.EndpointKey{f.model.state.Endpoints[0].Key})[0].Taken, uint32(12*(counterRegions())); got != want {
		t.Errorf("%d choices counted, want %d for CPUs that all stand at 12", got, want)
	}
}

// ringHash is the ring hash of a connection to the first endpoint.
func (f flowFixture) ringHash(from uint16) uint64 {
	frame := tcpSegment(80, from, wire.ACK).Frame()
	p, e := readIP4(frame[14:], len(frame)-14), f.model.state.Endpoints[0]
	return f.model.identity(p, e).hash(f.model.ringKey(e))
}

// TestSchedulerPassesOver: members that are dead or take no new flows get none, whatever the sequence says; when it has nobody the ring has.
func TestSchedulerPassesOver(t *testing.T) {
	for _, kind := range []ScheduleKind{ScheduleNext, ScheduleRandom, ScheduleLighter} {
		e := scheduledEndpoint(kind, "10.20.1.1", "10.20.2.1", "10.20.3.1", "10.20.4.1")
		e.Members[1].Choosable = false // drains
		f := newFlowFixture(t, e)
		f.setAlive(MemberAlive{e.Key, 2, false})
		f.schedule([]uint16{0, 1, 2, 3, 99}, MemberLoad{0, 1<<48 | 5}, MemberLoad{1, 1 << 48}, MemberLoad{2, 1 << 48}, MemberLoad{3, 1<<48 | 9})
		for port := range uint16(60) {
			if got := f.send(1000+port, wire.SYN); got.member.Member != 0 && got.member.Member != 3 {
				t.Fatalf("kind %d: a connection goes to member %d", kind, got.member.Member)
			}
		}
		f.schedule([]uint16{1, 2})
		for port := range uint16(20) {
			if got := f.send(3000+port, wire.SYN); got.member.Member != 0 && got.member.Member != 3 {
				t.Fatalf("kind %d: a connection goes to member %d, though only the ring has any", kind, got.member.Member)
			}
		}
		if what := f.wrongSchedules(); what != "" {
			t.Fatal(what)
		}
	}
}

// TestPowerOfTwo: of many connections the loaded member gets few, and as they are given the loads grow alike.
func TestPowerOfTwo(t *testing.T) {
	f := newFlowFixture(t, scheduledEndpoint(ScheduleLighter, "10.20.1.1", "10.20.2.1", "10.20.3.1"))
	step := uint64(100) << 48
	f.schedule([]uint16{0, 1, 2}, MemberLoad{0, step}, MemberLoad{1, step}, MemberLoad{2, step | 100*20})
	had := map[uint16]int{}
	for port := range uint16(100) {
		had[f.send(1000+port, wire.SYN).member.Member]++
	}
	if had[2] > 25 || had[0] < 30 || had[1] < 30 {
		t.Errorf("members got %v connections, the third had 20 before", had)
	}
	e := f.model.state.Endpoints[0].Key
	for id, word := range f.mux.Scheduled([]lb.EndpointKey{e})[0].Loads {
		if want := f.model.schedules.loads[MemberKey{e, uint16(id)}]; word != want || had[uint16(id)] == 0 {
			t.Errorf("member %d has word %#x, want %#x", id, word, want)
		}
	}
	if what := f.wrongSchedules(); what != "" {
		t.Fatal(what)
	}
}

// TestPowerOfTwoFollowsConnections: a connection that closes is taken off again, once, and one that begins anew counts again.
func TestPowerOfTwoFollowsConnections(t *testing.T) {
	f := newFlowFixture(t, scheduledEndpoint(ScheduleLighter, "10.20.1.1", "10.20.2.1"))
	step := uint64(100) << 48
	f.schedule([]uint16{0, 1}, MemberLoad{0, step}, MemberLoad{1, step})
	load := func() (sum uint64) {
		entry := f.mux.tables.entries[f.model.state.Endpoints[0].Key]
		for i := range uint32(2) {
			sum += f.mux.memory.memberLoads[entry.block.first+i] & (1<<48 - 1)
		}
		return sum
	}
	for i, flags := range []uint8{wire.SYN, wire.SYN, wire.ACK, wire.ACK | wire.FIN, wire.ACK | wire.FIN, wire.ACK, wire.SYN, wire.SYN, wire.RST,
		// Of one 5-tuple, without a FIN between: one connection at most.
		wire.SYN, wire.ACK, wire.SYN, wire.ACK, wire.SYN, wire.ACK, wire.ACK | wire.FIN} {
		f.send(1000, flags)
		if got, want := load(), []uint64{100, 100, 100, 0, 0, 0, 100, 100, 0, 100, 100, 100, 100, 100, 100, 0}[i]; got != want {
			t.Fatalf("after segment %d of flags %#x: %d, want %d", i, flags, got, want)
		}
		if what := f.wrongSchedules(); what != "" {
			t.Fatal(what)
		}
	}
}

// TestUnrememberedGoesByRing: what finds no room in the flow table is given by the ring, where its later packets find the same.
func TestUnrememberedGoesByRing(t *testing.T) {
	f := newFlowFixture(t, scheduledEndpoint(ScheduleNext, "10.20.1.1", "10.20.2.1", "10.20.3.1"))
	f.schedule([]uint16{0, 1, 2})
	full := 0
	for port := range uint16(6000) {
		before := f.model.schedules.cursors[f.model.state.Endpoints[0].Key]
		got := f.check(tcpSegment(80, 1000+port, wire.SYN).Frame())
		f.check(tcpSegment(80, 1000+port, wire.ACK).Frame())
		if !slices.Contains(f.model.noted, "flow_table_full") {
			continue
		}
		full++
		if want, _ := f.model.ring(f.model.state.Endpoints[0], f.ringHash(1000+port)); got.member.Member != want {
			t.Fatalf("goes to member %d, the ring says %d", got.member.Member, want)
		}
		if f.model.schedules.cursors[f.model.state.Endpoints[0].Key] != before {
			t.Fatal("the cursor moved")
		}
	}
	if full == 0 {
		t.Fatal("the table never was full")
	}
}

// TestScheduleTrace: a trace takes the member that the program takes next, by the tables and by the twin.
func TestScheduleTrace(t *testing.T) {
	for _, kind := range []ScheduleKind{ScheduleNext, ScheduleRandom, ScheduleLighter} {
		e := scheduledEndpoint(kind, "10.20.1.1", "10.20.2.1", "10.20.3.1")
		f := newFlowFixture(t, e)
		fake := &FakeMux{}
		must(t, fake.Apply(f.model.state))
		f.setAlive(MemberAlive{e.Key, 1, false})
		fake.SetAlive([]MemberAlive{{e.Key, 1, false}})
		given := Schedule{
			Endpoint: e.Key, Kind: kind, Sequence: []uint16{0, 1, 2, 2},
			Loads: []MemberLoad{{0, 1<<48 | 50}, {1, 1 << 48}, {2, 1<<48 | 40}},
		}
		must(t, fake.SetSchedules([]Schedule{given}))
		f.schedule(given.Sequence, given.Loads...)
		for port := uint16(1000); port < 1040; port++ {
			q := Packet{Client: muxClient4, VIP: muxVIP4, Protocol: lb.TCP, ClientPort: port, Port: 80, Segment: SegmentOpening}
			fake.phases = map[lb.EndpointKey]uint32{e.Key: f.model.schedules.cursors[e.Key].phase}
			must(t, fake.SetSchedules([]Schedule{{e.Key, kind, given.Sequence, []MemberLoad{
				{0, f.model.schedules.loads[MemberKey{e.Key, 0}]}, {1, 1 << 48}, {2, f.model.schedules.loads[MemberKey{e.Key, 2}]},
			}}}))
			traced, err := f.mux.Trace(q)
			must(t, err)
			twin, err := fake.Trace(q)
			must(t, err)
			got := f.send(port, wire.SYN)
			if traced.Member != got.member.Member || twin.Member != got.member.Member {
				t.Fatalf("kind %d: to member %d, the trace says %d (%v), the twin %d (%v)", kind, got.member.Member, traced.Member, traced.Steps, twin.Member, twin.Steps)
			}
		}
		// In the middle of an unknown connection the ring is asked.
		q := Packet{Client: muxClient4, VIP: muxVIP4, Protocol: lb.TCP, ClientPort: 5000, Port: 80, Segment: SegmentLater}
		traced, err := f.mux.Trace(q)
		must(t, err)
		if got := f.send(5000, wire.ACK); traced.Member != got.member.Member {
			t.Fatalf("later: to member %d, the trace says %d", got.member.Member, traced.Member)
		}
	}
}

// TestSequencesSurviveTheirAgent: the next agent's program goes by the sequences of the one before until it is told others, and frees them then.
func TestSequencesSurviveTheirAgent(t *testing.T) {
	env := newMuxEnv(t)
	m, err := env.open(XDPNative)
	must(t, err)
	f := &muxFixture{t, m, &muxModel{alive: map[MemberKey]bool{}, mac: testMAC, ingress: ingress, schedules: newModelSchedules()}}
	e := scheduledEndpoint(ScheduleNext, "10.20.1.1", "10.20.2.1")
	s := MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{e}}
	f.apply(s)
	empty := m.tables.rings.used
	must(t, f.setSchedule(Schedule{Endpoint: e.Key, Kind: ScheduleNext, Sequence: []uint16{0, 1, 1}}))
	must(t, m.Close())
	m, err = env.open(XDPNative)
	must(t, err)
	defer m.Close()
	f.mux = m
	f.beginAt(e.Key)
	if what := f.wrongSchedules(); what != "" {
		t.Fatal(what)
	}
	f.apply(s)
	if what := f.wrongSchedules(); what != "" {
		t.Fatal("after the plan: " + what)
	}
	must(t, f.setSchedule(Schedule{Endpoint: e.Key, Kind: ScheduleNext, Sequence: []uint16{1}}))
	must(t, f.setSchedule(Schedule{Endpoint: e.Key, Kind: ScheduleNext}))
	settle(t, m)
	if m.tables.rings.used != empty {
		t.Errorf("%d words of rings in use, %d before there was a sequence", m.tables.rings.used, empty)
	}
	must(t, f.setSchedule(Schedule{Endpoint: e.Key, Kind: ScheduleNext, Sequence: []uint16{0, 1, 1}}))
	// Another scheduler, and then none, forget the sequence.
	for _, kind := range []ScheduleKind{ScheduleLighter, ScheduleRing} {
		s.Endpoints = []MuxEndpoint{scheduledEndpoint(kind, "10.20.1.1", "10.20.2.1")}
		f.apply(s)
		if what := f.wrongSchedules(); what != "" {
			t.Fatal(what)
		}
		if m.tables.rings.used != empty {
			t.Errorf("%d words of rings in use, %d before there was a sequence", m.tables.rings.used, empty)
		}
	}
	must(t, f.setSchedule(Schedule{Endpoint: e.Key, Kind: ScheduleNext, Sequence: []uint16{0}}))
	if what := f.wrongSchedules(); what != "" {
		t.Fatal("an endpoint without scheduler was given a sequence: " + what)
	}
}

// beginAt makes the model know where an endpoint's cursors stand, and all CPUs stand there.
func (f *muxFixture) beginAt(key lb.EndpointKey) {
	f.model.schedules.cursors[key] = modelCursor{1 << 31, 7}
	f.alignCursors()
}

// TestSequencesAreRefused: what is too long, or has no room, changes nothing.
func TestSequencesAreRefused(t *testing.T) {
	f := newFlowFixture(t, scheduledEndpoint(ScheduleNext, "10.20.1.1", "10.20.2.1"))
	f.schedule([]uint16{0, 1})
	e := f.model.state.Endpoints[0].Key
	for n, want := range map[int]string{MaxSchedule + 1: "must be at most 16384", MaxSchedule: "no room for a sequence of 16384 places (--ring-slots)"} {
		if err := f.setSchedule(Schedule{Endpoint: e, Kind: ScheduleNext, Sequence: make([]uint16, n)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d places: %v, want %q", n, err, want)
		}
	}
	if what := f.wrongSchedules(); what != "" {
		t.Fatal(what)
	}
	bad := scheduledEndpoint(ScheduleNext, "10.20.1.1")
	bad.Affinity = AffinityHash
	if err := f.mux.Apply(MuxState{RingKeys: testKeys, TunnelSources: sources, Endpoints: []MuxEndpoint{bad}}); err == nil || !strings.Contains(err.Error(), "scheduler: needs an affinity") {
		t.Errorf("affinity hash: %v", err)
	}
}

// TestScheduleLimits: what the pure package and the programs take for granted is the same.
func TestScheduleLimits(t *testing.T) {
	if sched.MaxLength != MaxSchedule || sched.StepShift != int(muxMemberLoadShiftMEMBER_LOAD_STEP_SHIFT) {
		t.Errorf("sequences of %d and %d places, steps from bit %d and %d on", sched.MaxLength, MaxSchedule, sched.StepShift, muxMemberLoadShiftMEMBER_LOAD_STEP_SHIFT)
	}
}
