package dataplane

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// connectionTable are the records of connections (bpf/abi/connection.h). The index of a free one is on the stack of a CPU, in the depot, or in hand.
type connectionTable struct {
	records []muxTrackRecord // none: no records are kept
	buckets []muxFlowBucket
	stacks  []uint64
	heads   []uint64
	region  uint32 // places of a CPU's stack
	// put gives the depot a batch, take takes one: they fail when there is no room, or none.
	put  func(muxConnectionBatch) error
	take func() (muxConnectionBatch, bool)
	// hand has the indices that only the agent knows; Mux.mu guards it.
	hand []uint32
	// used is how many had a connection at the last sweep.
	used uint64
}

// trackRegion is the room of a CPU's stack: all of them together have at most an eighth of the records, but room for four batches each.
func trackRegion(connections, cpus uint32) uint32 {
	region := uint32(muxConnectionLimitLIMIT_CONNECTION_REGION)
	for 2*region*cpus <= connections/8 {
		region *= 2
	}
	return region
}

// connectionSizes are the tables of so many records on so many CPUs.
func connectionSizes(connections, cpus uint32) (tables, variables map[string]uint32) {
	buckets, region := max(2*connections/uint32(muxLimitLIMIT_FLOW_BUCKET), 1), trackRegion(connections, cpus)
	connections = max(connections, 1)
	return map[string]uint32{
			muxMapConnections: connections, muxMapTrackBuckets: buckets, muxMapTrackStacks: cpus * region,
			muxMapTrackHeads: cpus * uint32(muxLimitLIMIT_DATAGRAM_REGION),
			// Twice as many batches as all of them fill: some that the agent gives are not full.
			muxMapTrackDepot: 2*connections/uint32(muxConnectionLimitLIMIT_CONNECTION_BATCH) + 1,
		}, map[string]uint32{
			muxVarTrackMask: buckets - 1, muxVarTrackRegion: region,
		}
}

// openConnections is the table of a program that no packet has met yet: all records are free.
func openConnections(mem *muxMemory, depot *ebpf.Map) (*connectionTable, error) {
	t := &connectionTable{
		buckets: mem.trackBuckets, stacks: mem.trackStacks, heads: mem.trackHeads,
		put: func(b muxConnectionBatch) error { return depot.Update(nil, b, ebpf.UpdateAny) },
		take: func() (b muxConnectionBatch, ok bool) {
			err := depot.LookupAndDelete(nil, &b)
			return b, err == nil
		},
	}
	if n := len(mem.connections); n > 1 {
		t.records = mem.connections
	}
	t.region = uint32(len(t.stacks) / (len(t.heads) / int(muxLimitLIMIT_DATAGRAM_REGION)))
	t.begin()
	return t, t.stock()
}

// begin gives every CPU half a stack, of at most half of the records together, and takes the rest in hand.
func (t *connectionTable) begin() {
	cpus := len(t.heads) / int(muxLimitLIMIT_DATAGRAM_REGION)
	each, next := min(t.region/2, uint32(len(t.records)/2/cpus)), uint32(0)
	for cpu := range cpus {
		for i := range each {
			t.stacks[uint32(cpu)*t.region+i] = uint64(next)
			next++
		}
		t.heads[cpu*int(muxLimitLIMIT_DATAGRAM_REGION)] = uint64(each)
	}
	t.hand = make([]uint32, 0, uint32(len(t.records))-next)
	for ; next < uint32(len(t.records)); next++ {
		t.hand = append(t.hand, next)
	}
}

// stock gives the depot what is in hand. A rest that fills no batch goes with one from there, so that few are not full; what finds no room stays in hand.
func (t *connectionTable) stock() error {
	const full = int(muxConnectionLimitLIMIT_CONNECTION_BATCH)
	if rest := len(t.hand) % full; rest > 0 {
		if b, ok := t.take(); ok {
			t.hand = append(t.hand, b.Indices[:b.Count]...)
		}
	}
	for len(t.hand) > 0 {
		var b muxConnectionBatch
		b.Count = uint32(copy(b.Indices[:], t.hand))
		if err := t.put(b); errors.Is(err, unix.E2BIG) {
			return nil
		} else if err != nil {
			return fmt.Errorf("give free records of connections to the programs: %w", err)
		}
		t.hand = t.hand[b.Count:]
	}
	t.hand = nil
	return nil
}

// read tells whose a record is (enum connection_shift), and whether it showed a FIN.
func (c *muxTrackRecord) read() (index uint32, member uint16, closing bool) {
	whose := atomic.LoadUint32(&c.Whose)
	index = whose >> muxConnectionShiftCONNECTION_ENDPOINT_SHIFT & uint32(muxLimitLIMIT_ENDPOINTS-1)
	return index, uint16(whose & (1<<muxConnectionShiftCONNECTION_ENDPOINT_SHIFT - 1)), whose>>muxConnectionShiftCONNECTION_CLOSING_SHIFT != 0
}

// age is the time in ticks since the last packet of a record. Another CPU may be ahead.
func (c *muxTrackRecord) age(tick uint64) uint64 {
	return uint64(max(int32(uint32(tick)-atomic.LoadUint32(&c.Last)), 0))
}

// of is the record that an entry names; nil for an empty one.
func (t *connectionTable) of(w flowWord) *muxTrackRecord {
	if w.class() == 0 || w.member() >= uint32(len(t.records)) {
		return nil
	}
	return &t.records[w.member()]
}

// free takes records of a chunk of buckets away, those of which gone says so, and counts what stays.
func (t *connectionTable) free(from int, gone func(FlowClass, *muxTrackRecord) bool) (stay uint64) {
	for i := range t.buckets[from:min(from+sweepChunk, len(t.buckets))] {
		for j := range t.buckets[from+i].Entries {
			word := &t.buckets[from+i].Entries[j]
			w := flowWord(load(word))
			r := t.of(w)
			if r == nil {
				continue
			}
			if !gone(w.class(), r) {
				stay++
				continue
			}
			// Who takes the entry has the record: a RST may come between.
			if atomic.CompareAndSwapUint64(word, uint64(w), 0) {
				atomic.StoreUint64(&r.Hash, 0)
				t.hand = append(t.hand, w.member())
			}
		}
	}
	return stay
}

// dropEndpoint frees the records of an endpoint that no packet meets any more.
func (t *connectionTable) dropEndpoint(index uint32) {
	for from := 0; from < len(t.buckets); from += sweepChunk {
		t.free(from, func(_ FlowClass, r *muxTrackRecord) bool { i, _, _ := r.read(); return i == index })
	}
}

// closingTicks is how long records stay behind a FIN.
func (t *muxTables) closingTicks() uint64 {
	return uint64(t.ticks(time.Duration(muxConnectionLimitLIMIT_CONNECTION_CLOSING) * time.Second))
}

// probationTicks is how long records stay on probation at most.
func (t *muxTables) probationTicks() uint64 {
	return uint64(t.ticks(time.Duration(muxConnectionLimitLIMIT_CONNECTION_PROBATION) * time.Second))
}

// tracked are the endpoints with Track, by the index of their counter.
func (t *muxTables) tracked() map[uint32]*muxEntry {
	out := map[uint32]*muxEntry{}
	for _, e := range t.entries {
		if e.flags()&muxEndpointFlagENDPOINT_TRACK != 0 {
			out[e.index] = e
		}
	}
	return out
}

// connectionGone says of a record, given the class of its entry, whether it was idle for too long, or of no endpoint with Track.
func (t *muxTables) connectionGone(tracked map[uint32]*muxEntry, tick uint64) func(FlowClass, *muxTrackRecord) bool {
	closing, probation := t.closingTicks(), t.probationTicks()
	return func(class FlowClass, r *muxTrackRecord) bool {
		index, _, closes := r.read()
		e := tracked[index]
		if e == nil {
			return true
		}
		limit := e.policy >> muxPolicyShiftPOLICY_TRUSTED_SHIFT & 0xffff
		if class == FlowUntrusted {
			limit = min(e.policy>>muxPolicyShiftPOLICY_UNTRUSTED_SHIFT&0xffff, probation)
		}
		if closes {
			limit = min(limit, closing)
		}
		return r.age(tick) > limit
	}
}

// sweepConnections frees the records of connections that are idle for too long, or behind a FIN.
func (m *Mux) sweepConnections() error {
	used := uint64(0)
	for from := 0; from < len(m.connections.buckets) && len(m.connections.records) > 0; from += sweepChunk {
		tick, err := m.now()
		if err != nil {
			return err
		}
		m.mu.Lock()
		used += m.connections.free(from, m.tables.connectionGone(m.tables.tracked(), tick))
		m.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connections.used = used
	return m.connections.stock()
}

// connectionsOf lists the connections of endpoints. It holds m.mu for a chunk of buckets at a time.
func (m *Mux) connectionsOf(ctx context.Context, l *flowList, tick uint64) error {
	for from := 0; from < len(m.connections.buckets) && l.left > 0; from += sweepChunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !m.connectionChunk(l, from, tick) {
			return nil
		}
	}
	return nil
}

// connectionChunk lists the connections in a chunk of buckets. It returns false if no listed endpoint has records.
func (m *Mux) connectionChunk(l *flowList, from int, tick uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	entries, places := map[uint32]*muxEntry{}, map[uint32]int{}
	for i, key := range l.of {
		if e := m.tables.entries[key]; e != nil && e.flags()&muxEndpointFlagENDPOINT_TRACK != 0 {
			entries[e.index], places[e.index] = e, i
		}
	}
	if len(entries) == 0 {
		return false
	}
	gone, t := m.tables.connectionGone(entries, tick), m.connections
	for i := range t.buckets[from:min(from+sweepChunk, len(t.buckets))] {
		for j := range t.buckets[from+i].Entries {
			w := flowWord(load(&t.buckets[from+i].Entries[j]))
			r := t.of(w)
			if r == nil {
				continue
			}
			if index, _, _ := r.read(); entries[index] != nil && !gone(w.class(), r) {
				l.add(places[index], m.tables.connection(w.class(), r, tick))
			}
		}
	}
	return true
}

// connection is a record as Flows lists it, given the class of its entry.
func (t *muxTables) connection(class FlowClass, r *muxTrackRecord, tick uint64) Flow {
	_, member, closing := r.read()
	f := Flow{
		Member: member, Class: class, Age: time.Duration(r.age(tick)) * t.tick, Tracked: true,
		Packets: atomic.LoadUint64(&r.Packets), Bytes: atomic.LoadUint64(&r.Bytes),
	}
	if closing && class == FlowTrusted {
		f.Class = FlowClosing
	}
	return f
}

// checkTrack refuses records of connections where none can be.
func (c *change) checkTrack(w MuxEndpoint) error {
	switch {
	case !w.Track:
		return nil
	case w.Cookie == nil && w.QUIC == nil:
		return errors.New("track: must have cookie keys, or read connection ids: only packets that say their member have records")
	case c.t.connections == nil || len(c.t.connections.records) == 0:
		return noRoom(TableConnections, "track: no room: this mux keeps no records of connections (--connections 0)")
	}
	return nil
}
