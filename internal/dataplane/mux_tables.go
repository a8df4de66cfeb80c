package dataplane

import (
	"net/netip"
	"time"
	"unsafe"

	"github.com/shuntlb/shunt/internal/lb"
)

// muxTables is what the mux's tables hold, and who owns which part of them. Everything in it can be rebuilt from the
// tables themselves (adopt).
type muxTables struct {
	mem  *muxMemory
	tick time.Duration // of flow stamps

	slots     *slotTable
	endpoints *pool
	rings     *buddy
	members   *buddy
	backends  *pool
	extras    *pool
	ports     *buddy // blocks of port_ranges
	guards    guardTable
	cookies   cookieTable
	// connections are the records of connections; nil in tests without a program.
	connections *connectionTable
	snat        snatTable
	quic        quicTable

	entries map[lb.EndpointKey]*muxEntry
	records backendSet
	hops    hopTable
	idles   idleCounts

	// whole: a whole state was published, with these tunnel sources, so that parts of it can change.
	whole   bool
	sources []netip.Prefix

	// owners has the endpoint of every block of member words, by words / memberBlockMin; flows of words that have none
	// are forgotten by the sweep.
	owners []*muxEntry
	// limbo are blocks of member words that no reader finds any more, but flows may still name: free after a sweep.
	limbo []block
	// sweeps counts the passes through the flow table.
	sweeps uint64
}

// muxEntry is an endpoint in the tables, or a VIP as such (protocol and port 0: no ring, no members).
type muxEntry struct {
	slot, index uint32 // of endpoint_slots, of endpoint_counts
	policy      uint64
	extra       uint32     // index of the endpoint_extra record + 1, 0 none
	quic        uint32     // index of the quic_set + 1, 0 none
	cookies     *cookieRef // nil: none
	rings       [2]ringRef // without backups, with them
	backup      bool       // the second is in use
	hashKey     uint16     // MuxEndpoint.hashKey
	scheduler   ScheduleKind
	sequence    sequenceRef // of kind scheduler, or none
	adopted     bool        // and not applied since: which of the rings the one known is, is not known
	block       block       // of member words
	// moved was block before it had to grow: flows may name its words until a sweep has gone through all. ripe: no reader
	// can make such a flow any more.
	moved block
	ripe  bool
	moves int // how often the members moved
	// At the last sweep its VIP held more than its share of the flow table; with path nat, of the sessions that wait for trust, and of those that are trusted.
	over, overWaiting, overSessions bool

	count   int // member words in use
	members memberRefs
	idle    uint64           // the endpoint's word in muxTables.idles, 0: not counted
	ranges  portSpan         // of a VIP as such
	of      []lb.EndpointKey // the endpoints of a VIP as such, once a whole state was published
	// Until the release of the change that moved or removed them: a block that may still count packets of the members,
	// and words of members that are gone.
	before  block
	leaving []uint32
}

// ringRef is where a ring is; the zero value is no ring.
type ringRef struct {
	block
	code uint8
}

// active is the ring in use: without backups there is only the first.
func (e *muxEntry) active() ringRef {
	if e.backup && e.rings[1].words > 0 {
		return e.rings[1]
	}
	return e.rings[0]
}

// backendKey is what a backend record is made of.
type backendKey struct {
	outer netip.Addr
	mtu   uint32
	encap Encap
	port  uint16 // of path nat: of the server, 0: the one that packets come to
}

// backendRef is a backend record; members of many endpoints may share it.
type backendRef struct {
	backendKey
	index, refs uint32
}

// Blocks are never smaller than this, in words.
const (
	ringBlockMin   = 1 << muxLimitLIMIT_RING_CODE_MIN / slotsPerWord
	memberBlockMin = 4
	portBlockMin   = 4
	slotsPerWord   = 4
)

// Bits of member words.
const (
	memberAlive     = uint64(1) << muxMemberBitMEMBER_ALIVE_SHIFT
	memberChoosable = uint64(1) << muxMemberBitMEMBER_CHOOSABLE_SHIFT
	memberPresent   = uint64(1) << muxMemberBitMEMBER_PRESENT_SHIFT
)

func newMuxTables(mem *muxMemory, tick time.Duration, hz uint64) *muxTables {
	t := &muxTables{
		mem:       mem,
		tick:      tick,
		slots:     newSlotTable(mem.slots),
		endpoints: newPool(mem.endpointCounts.size),
		rings:     newBuddy(uint32(len(mem.rings)), ringBlockMin),
		members:   newBuddy(uint32(len(mem.members)), memberBlockMin),
		backends:  newPool(uint32(len(mem.backends))),
		extras:    newPool(uint32(len(mem.extras))),
		ports:     newBuddy(uint32(len(mem.portRanges)), portBlockMin),
		guards:    newGuardTable(mem, hz),
		cookies:   newCookieTable(mem),
		snat:      newSNATTable(mem),
		quic:      newQUICTable(mem),
		entries:   make(map[lb.EndpointKey]*muxEntry),
		records:   newBackendSet(len(mem.backends)),
		idles:     idleCounts{},
		owners:    make([]*muxEntry, len(mem.members)/memberBlockMin),
	}
	t.hops = newHopTable(mem)
	return t
}

// memberWord is the word of a member (enum member_bit).
func memberWord(backend uint32, choosable, alive bool) uint64 {
	w := uint64(backend) | memberPresent
	if choosable {
		w |= memberChoosable
	}
	if alive {
		w |= memberAlive
	}
	return w
}

// word is the address of a member's word.
func (t *muxTables) word(e *muxEntry, id uint16) *uint64 {
	return &t.mem.members[e.block.first+uint32(id)]
}

// own makes an endpoint, or nobody, the owner of a block of member words.
func (t *muxTables) own(b block, e *muxEntry) {
	for i := b.first / memberBlockMin; i < (b.first+b.words)/memberBlockMin; i++ {
		t.owners[i] = e
	}
	t.markShare(b, e)
}

// allocMembers finds a block of member words for an endpoint, after a sweep if there is none before.
func (c *change) allocMembers(count uint32, e *muxEntry) (block, bool) {
	t := c.t
	b, ok := t.members.alloc(count)
	if !ok {
		t.sweepBut(c.moved)
		b, ok = t.members.alloc(count)
	}
	t.own(b, e)
	return b, ok
}

// slotsOf are ring words as the member ids in them, four to a word, the first in the lowest bits: programs and tables are
// little endian, as the processor is (mux_bpfel.go is built for no other).
func slotsOf(words []uint64) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*slotsPerWord)
}

// wordsOf is the inverse of slotsOf; what does not fill a word is left out.
func wordsOf(slots []uint16) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(slots))), len(slots)/slotsPerWord)
}

// packRing writes member ids into ring words that may have readers.
func packRing(words []uint64, ring []uint16) {
	for i, w := range wordsOf(ring) {
		store(&words[i], w)
	}
}

// ringWord and membersWord are the atomic words of an endpoint record.
func ringWord(r ringRef, hashKey uint16) uint64 {
	if r.words == 0 {
		return 0
	}
	return uint64(r.first) | uint64(r.code)<<32 | uint64(hashKey)<<muxRingWordBitRING_WORD_KEY_SHIFT
}

// hashKey names the key of the ring's hash as the ring word does: the slot, and whether the record has a tweak.
func (w *MuxEndpoint) hashKey() uint16 {
	if w.RingTweak == 0 {
		return uint16(w.KeySlot)
	}
	return uint16(w.KeySlot) | 1<<(muxRingWordBitRING_WORD_KEYED_SHIFT-muxRingWordBitRING_WORD_KEY_SHIFT)
}

func membersWord(b block, count int) uint64 { return uint64(b.first) | uint64(count)<<32 }
