package dataplane

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/lb"
)

// MuxQUIC is how the connection ids of an endpoint's servers are read.
type MuxQUIC = cid.Set

// checkQUIC refuses an endpoint of which connection ids could not be read, or of which more would make the flow than they say.
func checkQUIC(e MuxEndpoint) error {
	switch {
	case e.QUIC == nil:
		return nil
	case e.Affinity != AffinityCookie:
		return errors.New("QUIC: must have affinity cookie")
	case e.Key.Protocol != lb.UDP:
		return fmt.Errorf("QUIC: with protocol %s: must be udp", e.Key.Protocol)
	case e.OnePacket || e.Fragments3Tuple || e.sourceBits() != 0:
		return errors.New("QUIC: not with one packet, fragments by three values, or source affinity")
	}
	if err := e.QUIC.Check(); err != nil {
		return fmt.Errorf("QUIC: %w", err)
	}
	return nil
}

// quicField is how far the first eight octets of a connection id in clear are shifted for its member id.
func quicField(bitsBefore int) uint64 { return uint64(64 - bitsBefore - cid.MemberBits) }

// quicHead is a word of struct quic_set's heads; field is that of QUIC_FIELD_SHIFT or QUIC_PLAIN_SHIFT.
func quicHead(kind muxQuicKind, length int, field uint64) uint64 {
	return uint64(kind)<<muxQuicHeadQUIC_KIND_SHIFT | uint64(length)<<muxQuicHeadQUIC_LENGTH_SHIFT | field<<muxQuicHeadQUIC_FIELD_SHIFT
}

// quicSet is the record of the table for a set.
func quicSet(s *MuxQUIC) (out muxQuicSet) {
	for i := range out.Heads {
		first := byte(i) << 5
		length := s.Length(first)
		switch {
		case length == 0:
		case s.Format == cid.MVFST && first>>6 == 1:
			out.Heads[i] = quicHead(muxQuicKindQUIC_CLEAR, length, quicField(2))
		case s.Format != cid.QUICLB:
			out.Heads[i] = quicHead(muxQuicKindQUIC_CLEAR, length, quicField(8))
		case length-1 == 16:
			out.Heads[i] = quicHead(muxQuicKindQUIC_SINGLE, length, 0)
		default:
			out.Heads[i] = quicHead(muxQuicKindQUIC_FOUR_PASS, length, uint64(length-1))
		}
	}
	if s.Format != cid.QUICLB {
		return out
	}
	for _, c := range s.Configs {
		keys := &out.Configs[c.ID].Schedule.Keys
		if c.ServerID+c.Nonce == 16 {
			*keys = cid.Decryption(c.Key)
		} else {
			*keys = cid.Encryption(c.Key)
		}
	}
	return out
}

// quicTable keeps how connection ids are read (struct quic_set). A record is immutable while an endpoint names it.
type quicTable struct {
	records []muxQuicSet
	indices *pool
	// endpoints is how many have a record, those that were given up not counted.
	endpoints int
}

func newQUICTable(mem *muxMemory) quicTable {
	return quicTable{records: mem.quicSets, indices: newPool(uint32(len(mem.quicSets)))}
}

// room is how many endpoints may have a record: as many again are for those that change.
func (t *quicTable) room() int { return len(t.records) / 2 }

// release frees the record of an endpoint, 0 being none. Keys do not outlive their use.
func (t *quicTable) release(number uint32) {
	if number != 0 {
		t.records[number-1] = muxQuicSet{}
		t.indices.free(number - 1)
	}
}

// stageQUIC gives an endpoint another record, or none, when it differs from the present one. Its number, index + 1, is what the policy word
// names.
func (c *change) stageQUIC(e *muxEntry, w MuxEndpoint) (number uint32, err error) {
	t, old := &c.t.quic, e.quic
	if w.QUIC == nil && old == 0 {
		return 0, nil
	}
	var want muxQuicSet
	if w.QUIC != nil {
		want = quicSet(w.QUIC)
		if old != 0 && t.records[old-1] == want {
			return old, nil
		}
		index, ok := t.indices.alloc()
		if !ok {
			return 0, noRoom(TableQUIC, "QUIC endpoints: no room: at most %d (--max-quic-endpoints)", t.room())
		}
		c.undos = append(c.undos, func() { t.release(index + 1) })
		t.records[index] = want
		number = index + 1
	}
	c.quics += known(number) - known(old)
	c.members = append(c.members, func() { e.quic = number })
	if old != 0 {
		c.released = append(c.released, func() { t.release(old) })
	}
	return number, nil
}

// known is 1 of a number, 0 of none.
func known(number uint32) int {
	if number == 0 {
		return 0
	}
	return 1
}

// countQUIC refuses more endpoints than there may be, though there is room for their records as long as few of them change. All of the change is staged.
func (c *change) countQUIC() error {
	t := &c.t.quic
	if n := t.endpoints + c.quics; n > t.room() {
		return noRoom(TableQUIC, "QUIC endpoints: %d: at most %d (--max-quic-endpoints)", n, t.room())
	}
	c.members = append(c.members, func() { t.endpoints += c.quics })
	return nil
}

// adopt learns the record of an endpoint from its policy word.
func (t *quicTable) adopt(e *muxEntry) error {
	if e.flags()&muxEndpointFlagENDPOINT_QUIC == 0 {
		return nil
	}
	e.quic = uint32(e.policy >> muxPolicyShiftPOLICY_COOKIE_SHIFT)
	if e.quic == 0 || !t.indices.reserve(e.quic-1) {
		return fmt.Errorf("QUIC: record %d: beyond the table or in use twice", e.quic)
	}
	t.endpoints++
	return nil
}

// quicOf is the inverse of quicSet.
func quicOf(r *muxQuicSet) *MuxQUIC {
	s := &MuxQUIC{Format: cid.QUICLB}
	for i, head := range r.Heads {
		length := int(head >> muxQuicHeadQUIC_LENGTH_SHIFT & 0xff)
		kind := muxQuicKind(head >> muxQuicHeadQUIC_KIND_SHIFT & 0xff)
		switch {
		case head == 0:
			continue
		case i == 2 && head == quicHead(muxQuicKindQUIC_CLEAR, length, quicField(2)):
			return &MuxQUIC{Format: cid.MVFST}
		case kind == muxQuicKindQUIC_CLEAR && i == len(r.Heads)-1: // of Plain these ids are unroutable
			return &MuxQUIC{Format: cid.MSQUIC}
		case kind == muxQuicKindQUIC_CLEAR:
			s.Format = cid.Plain
		}
		// How server id and nonce divide their octets says nothing about the first 12 bits.
		c := cid.Config{ID: uint8(i), ServerID: uint8(max(2, length-1-18)), Nonce: 0}
		c.Nonce = uint8(length-1) - c.ServerID
		switch keys := cid.Schedule(r.Configs[min(i, len(r.Configs)-1)].Schedule.Keys); kind {
		case muxQuicKindQUIC_SINGLE:
			c.Key = keys.DecryptionKey()
		case muxQuicKindQUIC_FOUR_PASS:
			c.Key = keys.Key()
		}
		s.Configs = append(s.Configs, c)
	}
	s.Configs = slices.Clip(s.Configs)
	return s
}
