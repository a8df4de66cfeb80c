package dataplane

import (
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/sched"
)

// scheduleView is by what new flows of an endpoint are given to members.
type scheduleView struct {
	kind     ScheduleKind
	sequence []uint16
	phase    uint32            // where the first CPU stands
	loads    map[uint16]uint64 // by member id
}

// scheduleTries is how many places ScheduleNext looks at (bpf/abi/schedule.h).
const scheduleTries = int(muxScheduleLimitLIMIT_SCHEDULE_TRIES)

// schedule takes a member for a new flow from the endpoint's sequence; false when the ring is to be asked.
func (t *Trace) schedule(e endpointView, p Packet, hash uint64) bool {
	if e.schedule.kind == ScheduleRing {
		return false
	}
	if p.Protocol == lb.TCP && p.Segment != SegmentOpening {
		t.step("not the first segment: the ring is asked, as by muxes that did not see that")
		return false
	}
	if e.quic != nil && p.CID != nil {
		t.step("not the first packet of a connection: the ring is asked, and nothing remembered")
		return false
	}
	n := len(e.schedule.sequence)
	if n == 0 {
		t.step("its scheduler has no sequence yet: the ring is asked")
		return false
	}
	id, ok := t.take(e, hash)
	if !ok {
		t.step("none of the members that its scheduler looks at takes new flows: the ring is asked")
		return false
	}
	t.forward(id, e.members[id])
	return true
}

// take takes a member as the kind of scheduler does.
func (t *Trace) take(e endpointView, hash uint64) (uint16, bool) {
	s, n := e.schedule, len(e.schedule.sequence)
	if s.kind == ScheduleNext {
		for i := range scheduleTries {
			at := schedulePlace(s.phase+uint32(i)*scheduleStep(n), n)
			if id := s.sequence[at]; t.takes(e, id) {
				t.step("the next of a sequence of %d places; the first CPU stands at place %d: member %d", n, at, id)
				return id, true
			}
		}
		return 0, false
	}
	one, other := sched.Draws(hash, n)
	first, second := s.sequence[one], s.sequence[other]
	switch {
	case !t.takes(e, first):
		if !t.takes(e, second) {
			return 0, false
		}
		first = second
	case s.kind == ScheduleRandom || !t.takes(e, second):
	case sched.Lighter(s.loads[first], s.loads[second]):
		t.step("drawn from a sequence of %d places: members %d and %d, of which %d is less loaded", n, first, second, second)
		return second, true
	default:
		t.step("drawn from a sequence of %d places: members %d and %d, of which %d is no more loaded", n, first, second, first)
		return first, true
	}
	t.step("drawn from a sequence of %d places by the flow's hash: member %d", n, first)
	return first, true
}

// takes says whether a member takes new flows.
func (t *Trace) takes(e endpointView, id uint16) bool {
	m, present := e.members[id]
	if present && m.alive && m.choosable {
		return true
	}
	t.step("member %d is %s", id, unusable(m, present))
	return false
}

// schedule reads what an endpoint's scheduler goes by.
func (v tablesView) schedule(record *muxEndpointSlot, members uint64) (s scheduleView) {
	flags, extra := load(&record.Policy)>>muxPolicyShiftPOLICY_FLAGS_SHIFT, load(&record.Extra)
	if flags&uint64(muxEndpointFlagENDPOINT_SCHED) == 0 || extra == 0 {
		return s
	}
	mem := v.t.mem
	ref := sequenceOf(load(&mem.extras[extra-1].Schedule))
	// Without a sequence nobody says which kind it is: it is none of the ring's.
	s.kind = max(ref.kind, ScheduleNext)
	s.loads = map[uint16]uint64{}
	if ref.length == 0 {
		return s
	}
	words := uint32(ref.length+slotsPerWord-1) / slotsPerWord
	s.sequence = append(s.sequence, slotsOf(mem.rings[ref.first : ref.first+words])[:ref.length]...)
	s.phase = uint32(load(&mem.cursors.cells[uint32(record.Value)-uint32(muxEndpointSlotValueENDPOINT_SLOT_FIRST)]))
	for id := range uint32(members >> 32) {
		s.loads[uint16(id)] = load(&mem.memberLoads[uint32(members)+id])
	}
	return s
}

// scheduleView is what the fake was given.
func (f *FakeMux) scheduleView(e MuxEndpoint) scheduleView {
	given := f.schedules[e.Key]
	if given.Kind != e.Scheduler {
		given = Schedule{}
	}
	s := scheduleView{kind: e.Scheduler, sequence: given.Sequence, phase: f.phases[e.Key], loads: map[uint16]uint64{}}
	for _, l := range given.Loads {
		s.loads[l.Member] = l.Word
	}
	return s
}
