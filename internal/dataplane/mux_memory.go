package dataplane

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// muxMemory are the mux's tables in this process's memory. Words that bpf/abi.h calls atomic are stored with store.
type muxMemory struct {
	slots    []muxEndpointSlot
	extras   []muxEndpointExtra
	rings    []uint64
	members  []uint64
	backends []muxBackend
	flows    []muxFlowBucket
	devices  []muxDevice
	config   *muxMuxConfig
	// Counters, in regions (bpf/abi.h).
	reasons        regions[uint64]
	endpointCounts regions[muxCounter]
	memberCounts   regions[muxCounter]

	portRanges  []uint64
	guards      []muxVipGuard
	sourceLists []muxSourceList
	sourceWords []uint64
	cookieSets  []muxCookieSet // none in former tables that know no cookies
	datagrams   []uint64
	pings       []uint64
	snatBlocks  []muxSnatBlock // none in former tables that know no SNAT
	// Of this process's program; none in former tables.
	cursors       regions[uint64]
	memberLoads   []uint64
	tooBigs       []uint64
	fragmentRates []uint64
	shareMarks    []uint64
	quicSets      []muxQuicSet    // none in former tables that know no QUIC
	natAddresses  []muxNatAddress // none in former tables that know no path nat
	natSessions   *ebpf.Map       // likewise
	natRoom       uint32          // sessions of path nat
	// Connections, of this process's program; none in former tables.
	connections  []muxTrackRecord
	trackBuckets []muxFlowBucket
	trackStacks  []uint64
	trackHeads   []uint64

	mapped [][]byte
}

// mapMux maps all tables.
func mapMux(m *muxMaps) (*muxMemory, error) {
	mem := &muxMemory{}
	var configs []muxMuxConfig
	for _, err := range []error{
		mapTable(mem, m.EndpointSlots, &mem.slots),
		mapTable(mem, m.EndpointExtras, &mem.extras),
		mapTable(mem, m.Rings, &mem.rings),
		mapTable(mem, m.Members, &mem.members),
		mapTable(mem, m.Backends, &mem.backends),
		mapTable(mem, m.Flows, &mem.flows),
		mapTable(mem, m.Devices, &mem.devices),
		mapTable(mem, m.Reasons, &mem.reasons.cells),
		mapTable(mem, m.EndpointCounts, &mem.endpointCounts.cells),
		mapTable(mem, m.MemberCounts, &mem.memberCounts.cells),
		mapTable(mem, m.Configs, &configs),
		mapTable(mem, m.PortRanges, &mem.portRanges),
		mapTable(mem, m.VipGuards, &mem.guards),
		mapTable(mem, m.SourceLists, &mem.sourceLists),
		mapTable(mem, m.SourceWords, &mem.sourceWords),
		mapTable(mem, m.Datagrams, &mem.datagrams),
		mapTable(mem, m.Pings, &mem.pings),
		mapIfThere(mem, m.SnatBlocks, &mem.snatBlocks),
		mapIfThere(mem, m.ScheduleCursors, &mem.cursors.cells),
		mapIfThere(mem, m.MemberLoads, &mem.memberLoads),
		mapIfThere(mem, m.TooBigs, &mem.tooBigs),
		mapIfThere(mem, m.FragmentRates, &mem.fragmentRates),
		mapIfThere(mem, m.ShareMarks, &mem.shareMarks),
		mapIfThere(mem, m.QuicSets, &mem.quicSets),
		mapIfThere(mem, m.Connections, &mem.connections),
		mapIfThere(mem, m.TrackBuckets, &mem.trackBuckets),
		mapIfThere(mem, m.TrackStacks, &mem.trackStacks),
		mapIfThere(mem, m.TrackHeads, &mem.trackHeads),
		mapIfThere(mem, m.CookieSets, &mem.cookieSets),
		mapIfThere(mem, m.NatAddresses, &mem.natAddresses),
	} {
		if err != nil {
			mem.close()
			return nil, err
		}
	}
	mem.natSessions = m.NatSessions
	mem.config = &configs[0]
	mem.reasons.size = uint32(muxLimitLIMIT_REASONS)
	mem.endpointCounts.size = uint32(len(mem.endpointCounts.cells) / counterRegions())
	mem.memberCounts.size = uint32(len(mem.memberCounts.cells) / counterRegions())
	mem.cursors.size = uint32(len(mem.cursors.cells) / counterRegions())
	return mem, nil
}

// mapTable maps a BPF_F_MMAPABLE array as a slice of its elements.
func mapTable[T any](mem *muxMemory, m *ebpf.Map, out *[]T) error {
	var element T
	if size := uint32(unsafe.Sizeof(element)); size != m.ValueSize() {
		return fmt.Errorf("map table %s: its elements have %d bytes, expected %d", m, m.ValueSize(), size)
	}
	b, err := mem.mmap(m)
	if err != nil {
		return err
	}
	*out = unsafe.Slice((*T)(unsafe.Pointer(&b[0])), m.MaxEntries())
	return nil
}

// mapIfThere is mapTable for a table that former ABI versions do not have.
func mapIfThere[T any](mem *muxMemory, m *ebpf.Map, out *[]T) error {
	if m == nil {
		return nil
	}
	return mapTable(mem, m, out)
}

// mmap maps the bytes of a BPF_F_MMAPABLE array until close.
func (mem *muxMemory) mmap(m *ebpf.Map) ([]byte, error) {
	length := int(m.MaxEntries()) * int(m.ValueSize())
	b, err := unix.Mmap(m.FD(), 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map table %s into memory: %w", m, err)
	}
	mem.mapped = append(mem.mapped, b)
	return b, nil
}

func (mem *muxMemory) close() {
	for _, b := range mem.mapped {
		unix.Munmap(b) //nolint:errcheck // the address and length are the ones mmap returned
	}
	*mem = muxMemory{}
}

// store publishes a word.
func store(word *uint64, value uint64) { atomic.StoreUint64(word, value) }

// load reads a published word.
func load(word *uint64) uint64 { return atomic.LoadUint64(word) }
