package dataplane

import (
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// keepsFlows says whether the mux remembers flows of the endpoint, if only those whose packets do not carry the member.
func (e MuxEndpoint) keepsFlows() bool { return e.Affinity != AffinityHash && !e.OnePacket }

// policyWord is the policy word of an endpoint (bpf/abi.h); set is the number of its cookie_set or quic_set, 0 for none.
func (c *change) policyWord(w MuxEndpoint, set uint32) uint64 {
	t := c.t
	var flags muxEndpointFlag
	for _, f := range []struct {
		on   bool
		flag muxEndpointFlag
	}{
		{w.keepsFlows(), muxEndpointFlagENDPOINT_FLOW},
		{w.Cookie != nil, muxEndpointFlagENDPOINT_COOKIE},
		{w.QUIC != nil, muxEndpointFlagENDPOINT_QUIC},
		{w.Track, muxEndpointFlagENDPOINT_TRACK},
		{w.sourceBits() != 0, muxEndpointFlagENDPOINT_SOURCE},
		{w.OnePacket, muxEndpointFlagENDPOINT_ONE_PACKET},
		{w.Fragments3Tuple, muxEndpointFlagENDPOINT_FRAGMENTS_3TUPLE},
		{w.Key.Protocol == lb.AnyProtocol, muxEndpointFlagENDPOINT_ANY},
		{w.Scheduler != ScheduleRing, muxEndpointFlagENDPOINT_SCHED},
		{w.NAT, muxEndpointFlagENDPOINT_NAT},
		{w.FlowsFirst && (w.Cookie != nil || w.QUIC != nil), muxEndpointFlagENDPOINT_FLOWS_FIRST},
		{w.KeepDead, muxEndpointFlagENDPOINT_KEEP_DEAD},
		{c.guardOf[vipKey(w.Key)] != 0, muxEndpointFlagENDPOINT_ADMIT},
	} {
		if f.on {
			flags |= f.flag
		}
	}
	return uint64(t.ticks(w.Idle.Untrusted))<<muxPolicyShiftPOLICY_UNTRUSTED_SHIFT |
		uint64(t.ticks(w.Idle.Trusted))<<muxPolicyShiftPOLICY_TRUSTED_SHIFT |
		uint64(flags)<<muxPolicyShiftPOLICY_FLAGS_SHIFT |
		uint64(set)<<muxPolicyShiftPOLICY_COOKIE_SHIFT
}

// maxIdleTicks is the longest idle time in ticks of flow stamps, which have 16 bits: the sweep has the rest, about two hours,
// to find what is idle. It is longer than lb.MaxIdle, whatever the kernel's HZ.
const maxIdleTicks = 1<<16 - 1<<13

// ticks is an idle time in ticks of flow stamps: at least one.
func (t *muxTables) ticks(d time.Duration) uint16 {
	return uint16(min(max(int64((d+t.tick-1)/t.tick), 1), maxIdleTicks))
}

// isClient says whether an entry remembers a client of the endpoint, not a flow.
func (e *muxEntry) isClient(w flowWord) bool {
	return e.flags()&muxEndpointFlagENDPOINT_SOURCE != 0 && w>>muxFlowBitFLOW_CLIENT_SHIFT&1 != 0
}

// idle is the idle time of an entry of an endpoint, in ticks.
func (t *muxTables) idle(e *muxEntry, w flowWord) uint64 {
	if e.isClient(w) && e.extra != 0 {
		return uint64(t.mem.extras[e.extra-1].SourceTicks)
	}
	if w.class() == FlowTrusted {
		return e.policy >> muxPolicyShiftPOLICY_TRUSTED_SHIFT & 0xffff
	}
	return e.policy >> muxPolicyShiftPOLICY_UNTRUSTED_SHIFT & 0xffff
}

func (e *muxEntry) flags() muxEndpointFlag {
	return muxEndpointFlag(e.policy >> muxPolicyShiftPOLICY_FLAGS_SHIFT & 0xffff)
}

// endpointMoved is the flag in the policy word of endpoints whose record names their members' old place.
const endpointMoved = uint64(muxEndpointFlagENDPOINT_MOVED) << muxPolicyShiftPOLICY_FLAGS_SHIFT

// untrustedAge is how old, in ticks, entries of untrusted flows of an endpoint are when they are written (endpoint_extra).
func (t *muxTables) untrustedAge(w MuxEndpoint) uint32 {
	if w.Cookie == nil || w.Scheduler == ScheduleRing {
		return 0
	}
	return uint32(t.ticks(w.Idle.Untrusted) - min(t.ticks(w.Idle.Untrusted), t.ticks(lb.OpeningIdle)))
}

// extraOf is the cold record of an endpoint but for its members' old place; nil when it needs none.
func (c *change) extraOf(e *muxEntry, w MuxEndpoint) *muxEndpointExtra {
	x := muxEndpointExtra{Guard: c.guardOf[vipKey(w.Key)], UntrustedAge: c.t.untrustedAge(w), RingTweak: w.RingTweak}
	if e.sequence.kind == w.Scheduler {
		x.Schedule = e.sequence.word()
	}
	if w.sourceBits() != 0 {
		x.SourceMaskHi, x.SourceMaskLo = sourceMask(w)
		x.SourceTicks = uint32(c.t.ticks(w.SourceFor))
	}
	if x == (muxEndpointExtra{}) && w.Scheduler == ScheduleRing {
		return nil
	}
	return &x
}

// stagePolicy gives the endpoint another policy word and cold record when they differ.
func (c *change) stagePolicy(e *muxEntry, w MuxEndpoint) error {
	t := c.t
	if err := c.checkTrack(w); err != nil {
		return err
	}
	quic, err := c.stageQUIC(e, w)
	if err != nil {
		return err
	}
	cookies, err := c.stageCookies(e, w)
	if err != nil {
		return err
	}
	extra, word := c.extraOf(e, w), c.policyWord(w, quic|cookies)
	if before := c.membersBefore(e, w.Members); before != 0 {
		if extra == nil {
			extra = &muxEndpointExtra{}
		}
		extra.MembersBefore = before
		word |= endpointMoved
	}
	if err := c.stageExtra(e, extra); err != nil {
		return err
	}
	c.dropSequence(e, w.Scheduler)
	if word != e.policy {
		c.members = append(c.members, func() {
			e.policy = word
			store(&t.mem.slots[e.slot].Policy, word)
		})
	}
	return nil
}

// membersBefore is the members word of the place that flows may still name: the present one when the members need a
// larger block, or one that was left and not swept yet. 0: none.
func (c *change) membersBefore(e *muxEntry, wanted []MuxMember) uint64 {
	count := uint32(0)
	for _, m := range wanted {
		count = max(count, uint32(m.ID)+1)
	}
	if count > e.block.words && e.block.words > 0 {
		if e.moved.words > 0 {
			// Flows may name two old places: only one has room in the record.
			c.t.sweepBut(c.moved)
		}
		// All of it: also of ids that are not in use now flows may be left.
		return membersWord(e.block, int(e.block.words))
	}
	if e.moved.words > 0 && e.extra != 0 {
		c.moved[e] = true
		return c.t.mem.extras[e.extra-1].MembersBefore
	}
	return 0
}

// stageExtra gives the endpoint another cold record when it differs from the present one.
func (c *change) stageExtra(e *muxEntry, want *muxEndpointExtra) error {
	t, old := c.t, e.extra
	if want == nil && old == 0 || want != nil && old != 0 && t.mem.extras[old-1] == *want {
		return nil
	}
	next := uint32(0)
	if want != nil {
		index, ok := t.extras.alloc()
		if !ok {
			return noRoom(TableEndpoints, "endpoint records: no room: at most %d (--max-endpoints)", len(t.mem.extras))
		}
		c.undos = append(c.undos, func() { t.extras.free(index) })
		t.mem.extras[index] = *want
		next = index + 1
	}
	c.members = append(c.members, func() {
		e.extra = next
		store(&t.mem.slots[e.slot].Extra, uint64(next))
	})
	if old != 0 {
		c.released = append(c.released, func() { t.freeExtra(old) })
	}
	return nil
}

// freeExtra gives a cold record back; 0 is none.
func (t *muxTables) freeExtra(extra uint32) {
	if extra != 0 {
		t.extras.free(extra - 1)
	}
}
