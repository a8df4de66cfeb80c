package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// The layout of ABI version 1, which knew single ports and no flow table. It never changes again: offsets in bytes.
const (
	abi1SlotSize, abi1SlotKey, abi1SlotValue = 32, 16, 24
	abi1EndpointSize, abi1EndpointMembers    = 64, 8
	abi1BackendSize, abi1BackendHop          = 64, 16
	abi1DeviceSize, abi1DeviceIfindex        = 16, 8
	// abi1Endpoints was the table of endpoint records, which are part of the slots since.
	abi1Endpoints = "endpoints"
)

// formerOfABI1 reads tables of ABI version 1. It owns the maps when it succeeds.
func formerOfABI1(pinned map[string]*ebpf.Map) (*formerTables, error) {
	tables := map[string][]byte{}
	for name, size := range map[string]uint32{
		muxMapEndpointSlots: abi1SlotSize, abi1Endpoints: abi1EndpointSize, muxMapMembers: 8,
		muxMapBackends: abi1BackendSize, muxMapDevices: abi1DeviceSize,
	} {
		b, err := readTable(pinned[name], name, size)
		if err != nil {
			return nil, err
		}
		tables[name] = b
	}
	for _, name := range []string{muxMapReasons, muxMapEndpointCounts, muxMapMemberCounts} {
		if pinned[name] == nil || pinned[name].Type() != ebpf.PerCPUArray {
			return nil, fmt.Errorf("table %s of ABI version 1 is not there", name)
		}
	}
	r := &abi1Reader{tables: tables, pinned: pinned}
	f := &formerTables{alive: map[MemberKey]bool{}, hops: map[netip.Addr]NextHop{}, count: r.count}
	f.close = func() { closeMaps(pinned) }
	if err := r.read(f); err != nil {
		return nil, err
	}
	return f, nil
}

// readTable copies a memory-mapped array.
func readTable(m *ebpf.Map, name string, size uint32) ([]byte, error) {
	if m == nil || m.ValueSize() != size {
		return nil, fmt.Errorf("table %s of ABI version 1 is not there", name)
	}
	var mem muxMemory
	defer mem.close()
	b, err := mem.mmap(m)
	if err != nil {
		return nil, err
	}
	return append([]byte(nil), b...), nil
}

// abi1Reader keeps where the counters of endpoints and members are.
type abi1Reader struct {
	tables    map[string][]byte
	pinned    map[string]*ebpf.Map
	endpoints map[lb.EndpointKey]uint32
	members   map[MemberKey]uint32
}

// record is element i of a table, nil when the table ends before it.
func (r *abi1Reader) record(table string, i, size uint32) []byte {
	b := r.tables[table]
	if from := uint64(i) * uint64(size); from+uint64(size) <= uint64(len(b)) {
		return b[from : from+uint64(size)]
	}
	return nil
}

func (r *abi1Reader) read(f *formerTables) error {
	r.endpoints, r.members = map[lb.EndpointKey]uint32{}, map[MemberKey]uint32{}
	slots := r.tables[muxMapEndpointSlots]
	for ; len(slots) > 0; slots = slots[abi1SlotSize:] {
		value := binary.NativeEndian.Uint64(slots[abi1SlotValue:])
		word := binary.NativeEndian.Uint64(slots[abi1SlotKey:])
		key := endpointKeyOf([16]byte(slots[:16]), word)
		if value < uint64(muxEndpointSlotValueENDPOINT_SLOT_FIRST) || key.Protocol == 0 {
			continue
		}
		index := uint32(value - uint64(muxEndpointSlotValueENDPOINT_SLOT_FIRST))
		record := r.record(abi1Endpoints, index, abi1EndpointSize)
		if record == nil {
			return fmt.Errorf("endpoint %v: record %d: beyond the table", key, index)
		}
		r.endpoints[key] = index
		members := binary.NativeEndian.Uint64(record[abi1EndpointMembers:])
		for id := range uint32(members >> 32) {
			if err := r.member(f, key, id, uint32(members)+id); err != nil {
				return fmt.Errorf("endpoint %v: member %d: %w", key, id, err)
			}
		}
	}
	return nil
}

// member reads the word of a member, and the way to its backend.
func (r *abi1Reader) member(f *formerTables, key lb.EndpointKey, id, index uint32) error {
	b := r.record(muxMapMembers, index, 8)
	if b == nil {
		return fmt.Errorf("word %d: beyond the table", index)
	}
	word := binary.NativeEndian.Uint64(b)
	if word&memberPresent == 0 {
		return nil
	}
	backend := r.record(muxMapBackends, uint32(word), abi1BackendSize)
	if backend == nil {
		return fmt.Errorf("backend %d: beyond the table", uint32(word))
	}
	k := MemberKey{key, uint16(id)}
	f.alive[k], r.members[k] = word&memberAlive != 0, index
	hop := binary.NativeEndian.Uint64(backend[abi1BackendHop:])
	device := r.record(muxMapDevices, uint32(hop>>muxNexthopBitNEXTHOP_DEVICE_SHIFT)&0xff&^(1<<7), abi1DeviceSize)
	if hop>>muxNexthopBitNEXTHOP_VALID_SHIFT != 0 && device != nil {
		f.hops[netip.AddrFrom16([16]byte(backend[:16])).Unmap()] = NextHop{
			MAC: macOf(hop), Ifindex: int(binary.NativeEndian.Uint32(device[abi1DeviceIfindex:])),
		}
	}
	return nil
}

func (r *abi1Reader) count() (MuxCounters, error) {
	c := noCounters()
	for i, reason := range MuxReasons().All {
		var perCPU []uint64
		if uint32(i) >= r.pinned[muxMapReasons].MaxEntries() {
			break
		}
		if err := r.pinned[muxMapReasons].Lookup(uint32(i), &perCPU); err != nil {
			return c, fmt.Errorf("read reason %s: %w", reason.Name, err)
		}
		for _, n := range perCPU {
			c.Reasons[reason.Name] += n
		}
	}
	for key, index := range r.endpoints {
		n, err := sumPerCPU(r.pinned[muxMapEndpointCounts], index)
		if err != nil {
			return c, err
		}
		c.Endpoints[key] = n
	}
	for key, index := range r.members {
		n, err := sumPerCPU(r.pinned[muxMapMemberCounts], index)
		if err != nil {
			return c, err
		}
		c.Members[key] = n
	}
	return c, nil
}

// sumPerCPU sums an element of a per-CPU array of counters.
func sumPerCPU(m *ebpf.Map, i uint32) (sum Counter, err error) {
	var perCPU []muxCounter
	if err := m.Lookup(i, &perCPU); err != nil {
		return sum, fmt.Errorf("read counter %d of %s: %w", i, m, err)
	}
	for _, n := range perCPU {
		sum.Packets += n.Packets
		sum.Bytes += n.Bytes
	}
	return sum, nil
}
