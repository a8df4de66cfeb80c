package dataplane

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// ScheduleKind is how members are taken from the sequence of an endpoint (enum schedule_kind).
type ScheduleKind uint8

// ScheduleRing: there is no sequence, the ring says. ScheduleNext: the next one, each CPU for itself. ScheduleRandom: the one at a place that the
// flow's hash says. ScheduleLighter: of two such ones the one whose load is less.
const (
	ScheduleRing    ScheduleKind = 0
	ScheduleNext                 = ScheduleKind(muxScheduleKindSCHEDULE_NEXT)
	ScheduleRandom               = ScheduleKind(muxScheduleKindSCHEDULE_RANDOM)
	ScheduleLighter              = ScheduleKind(muxScheduleKindSCHEDULE_LIGHTER)
)

// MaxSchedule is how many places a sequence has at most.
const MaxSchedule = int(muxScheduleLimitLIMIT_SCHEDULE_LENGTH)

// Schedule is by what new flows of an endpoint are given to members.
type Schedule struct {
	Endpoint lb.EndpointKey
	Kind     ScheduleKind // the endpoint's
	// Sequence has member ids, at most MaxSchedule; empty: there is none, and the ring is asked. Ids that are no member's, or that take no new
	// flows, are passed over.
	Sequence []uint16
	// Loads are of ScheduleLighter only; members that are not named keep theirs.
	Loads []MemberLoad
}

// MemberLoad is a word of a member's load (enum member_load_shift, sched.WordOf).
type MemberLoad struct {
	Member uint16
	Word   uint64
}

// Scheduled is what packets did by the scheduler of an endpoint.
type Scheduled struct {
	// Taken is how often a member was taken from sequences since the program was loaded, modulo 2^32 for each CPU; of ScheduleNext only.
	Taken uint32
	// Loads are the words of members by their ids, with what packets gave since they were told; of ScheduleLighter only.
	Loads []uint64
}

// sequenceRef is where a sequence is; the zero value is none.
type sequenceRef struct {
	block
	length int
	kind   ScheduleKind
}

// word is the word of a sequence (enum schedule_shift).
func (s sequenceRef) word() uint64 {
	if s.length == 0 {
		return 0
	}
	return uint64(s.first) | uint64(s.length)<<muxScheduleShiftSCHEDULE_LENGTH_SHIFT | uint64(s.kind)<<muxScheduleShiftSCHEDULE_KIND_SHIFT
}

// sequenceOf reads a word, without the size of the block.
func sequenceOf(word uint64) sequenceRef {
	return sequenceRef{
		block: block{first: uint32(word)}, length: int(word >> muxScheduleShiftSCHEDULE_LENGTH_SHIFT & 0xffffff),
		kind: ScheduleKind(word >> muxScheduleShiftSCHEDULE_KIND_SHIFT),
	}
}

// SetSchedules implements MuxTables.
func (m *Mux) SetSchedules(schedules []Schedule) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, c := m.tables, &change{t: m.tables}
	var errs []error
	for _, s := range schedules {
		e := t.entries[s.Endpoint]
		if e == nil || e.extra == 0 || e.flags()&muxEndpointFlagENDPOINT_SCHED == 0 || e.scheduler != s.Kind {
			continue
		}
		// Loads first: a sequence may be the first one.
		for _, l := range s.Loads {
			if int(l.Member) < e.count {
				store(&t.mem.memberLoads[e.block.first+uint32(l.Member)], l.Word)
			}
		}
		if err := c.setSequence(e, s); err != nil {
			errs = append(errs, fmt.Errorf("schedule of endpoint %v: %w", s.Endpoint, err))
		}
	}
	m.leaveLocked(c)
	return errors.Join(errs...)
}

// setSequence publishes a sequence beside the present one. What that leaves is in c.released.
func (c *change) setSequence(e *muxEntry, s Schedule) error {
	t, old := c.t, e.sequence
	if len(s.Sequence) > MaxSchedule {
		return fmt.Errorf("sequence of %d places: must be at most %d", len(s.Sequence), MaxSchedule)
	}
	if old.kind == s.Kind && slices.Equal(t.sequence(old), s.Sequence) {
		return nil
	}
	next := sequenceRef{length: len(s.Sequence), kind: s.Kind}
	if next.length > 0 {
		var ok bool
		if next.block, ok = t.rings.alloc(uint32((next.length + slotsPerWord - 1) / slotsPerWord)); !ok {
			return noRoom(TableRings, "rings: no room for a sequence of %d places (--ring-slots)", next.length)
		}
		copy(t.slots16(next.block), s.Sequence)
	}
	e.sequence = next
	store(&t.mem.extras[e.extra-1].Schedule, next.word())
	if old.words > 0 {
		c.released = append(c.released, func() { t.rings.free(old.block) })
	}
	return nil
}

// sequence reads the ids of a sequence.
func (t *muxTables) sequence(s sequenceRef) []uint16 {
	return t.slots16(s.block)[:s.length]
}

// dropSequence forgets a sequence that is none of the endpoint's scheduler; its record does not name it any more.
func (c *change) dropSequence(e *muxEntry, wanted ScheduleKind) {
	old := e.sequence
	if e.scheduler == wanted && (old.kind == wanted || old.length == 0) {
		return
	}
	c.members = append(c.members, func() {
		e.scheduler = wanted
		if old.kind != wanted {
			e.sequence = sequenceRef{}
		}
	})
	if old.kind != wanted && old.words > 0 {
		c.released = append(c.released, func() { c.t.rings.free(old.block) })
	}
}

// adoptSequence learns the sequence of an endpoint.
func (t *muxTables) adoptSequence(e *muxEntry) error {
	if e.extra == 0 || t.mem.extras[e.extra-1].Schedule == 0 {
		return nil
	}
	word := t.mem.extras[e.extra-1].Schedule
	s := sequenceOf(word)
	if s.length == 0 || s.length > MaxSchedule {
		return fmt.Errorf("schedule word %#x: %d places", word, s.length)
	}
	var ok bool
	if s.block, ok = t.rings.reserve(s.first, uint32((s.length+slotsPerWord-1)/slotsPerWord)); !ok {
		return fmt.Errorf("schedule word %#x: words in use twice", word)
	}
	e.sequence, e.scheduler = s, s.kind
	return nil
}

// schedulePlace is the place of a phase in a sequence of n, scheduleStep what a phase goes on by from one place to the next (bpf/mux/schedule.h).
func schedulePlace(phase uint32, n int) int { return int(uint64(phase) * uint64(n) >> 32) }

func scheduleStep(n int) uint32 { return math.MaxUint32/uint32(n) + 1 }

// scatterCursors begins the cursors of all CPUs and endpoints anywhere.
func (mem *muxMemory) scatterCursors() {
	for i := range mem.cursors.cells {
		mem.cursors.cells[i] = uint64(rand.Uint32())
	}
}

// Scheduled implements MuxTables.
func (m *Mux) Scheduled(keys []lb.EndpointKey) []Scheduled {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Scheduled, len(keys))
	for i, key := range keys {
		e := m.tables.entries[key]
		if e == nil {
			continue
		}
		for cell := range m.memory.cursors.of(e.index) {
			out[i].Taken += uint32(load(cell) >> muxScheduleCursorShiftSCHEDULE_COUNT_SHIFT)
		}
		if e.scheduler != ScheduleLighter {
			continue
		}
		for id := range uint32(e.count) {
			out[i].Loads = append(out[i].Loads, load(&m.memory.memberLoads[e.block.first+id]))
		}
	}
	return out
}

// SetSchedules implements MuxTables.
func (f *FakeMux) SetSchedules(schedules []Schedule) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.schedules == nil {
		f.schedules = map[lb.EndpointKey]Schedule{}
	}
	for _, s := range schedules {
		s.Sequence, s.Loads = slices.Clone(s.Sequence), slices.Clone(s.Loads)
		f.schedules[s.Endpoint] = s
	}
	return nil
}

// Schedule returns what an endpoint was given last.
func (f *FakeMux) Schedule(e lb.EndpointKey) Schedule {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.schedules[e]
}

// Scheduled implements MuxTables.
func (f *FakeMux) Scheduled(keys []lb.EndpointKey) []Scheduled {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]Scheduled, len(keys))
	for i, key := range keys {
		out[i] = f.scheduled[key]
	}
	return out
}

// SetScheduled decides what Scheduled returns.
func (f *FakeMux) SetScheduled(e lb.EndpointKey, s Scheduled) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.scheduled == nil {
		f.scheduled = map[lb.EndpointKey]Scheduled{}
	}
	f.scheduled[e] = s
}
