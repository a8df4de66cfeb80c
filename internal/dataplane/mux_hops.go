package dataplane

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
)

// hopTable keeps next hop words and devices. A word is immutable while a backend refers to it, and for a grace period
// after.
type hopTable struct {
	mem     *muxMemory
	pool    *pool
	wanted  map[netip.Addr]NextHop
	byHop   map[NextHop]*hopRef
	devices map[int]int // interface index -> slot
	retired []uint32    // words nobody refers to since some time after the last grace period
	// mac finds the address of an interface.
	mac func(ifindex int) ([6]byte, error)
}

// hopRef is a next hop word.
type hopRef struct {
	NextHop
	index uint32
	refs  int
}

func newHopTable(mem *muxMemory, pool *pool) hopTable {
	return hopTable{
		mem: mem, pool: pool, mac: interfaceMAC,
		wanted: map[netip.Addr]NextHop{}, byHop: map[NextHop]*hopRef{}, devices: map[int]int{},
	}
}

func interfaceMAC(ifindex int) (mac [6]byte, err error) {
	i, err := net.InterfaceByIndex(ifindex)
	if err != nil {
		return mac, fmt.Errorf("find interface %d: %w", ifindex, err)
	}
	copy(mac[:], i.HardwareAddr) // the loopback has none: zero
	return mac, nil
}

// macWord has the first octet in the lowest bits.
func macWord(mac [6]byte) (w uint64) {
	for i, b := range mac {
		w |= uint64(b) << (8 * i)
	}
	return w
}

func macOf(word uint64) (mac [6]byte) {
	for i := range mac {
		mac[i] = byte(word >> (8 * i))
	}
	return mac
}

// get finds or makes the word of a next hop and takes a reference.
func (t *hopTable) get(hop NextHop) (*hopRef, error) {
	ref, ok := t.byHop[hop]
	if !ok {
		device, err := t.device(hop.Ifindex)
		if err != nil {
			return nil, err
		}
		index, ok := t.pool.alloc()
		if !ok {
			return nil, fmt.Errorf("next hops: no room: at most %d may be in use", len(t.mem.nexthops)-1)
		}
		ref = &hopRef{NextHop: hop, index: index}
		t.byHop[hop] = ref
		store(&t.mem.nexthops[index], macWord(hop.MAC)|uint64(device)<<muxNexthopBitNEXTHOP_DEVICE_SHIFT|
			1<<muxNexthopBitNEXTHOP_VALID_SHIFT)
	}
	ref.refs++
	return ref, nil
}

// put gives a reference back; nil is none.
func (t *hopTable) put(ref *hopRef) {
	if ref == nil {
		return
	}
	if ref.refs--; ref.refs == 0 {
		delete(t.byHop, ref.NextHop)
		t.retired = append(t.retired, ref.index)
	}
}

// device finds or makes the slot of an interface. Slots of interfaces that no next hop names are used again only when
// the table is full, and never within a grace period: that case is refused.
func (t *hopTable) device(ifindex int) (int, error) {
	if slot, ok := t.devices[ifindex]; ok {
		return slot, nil
	}
	mac, err := t.mac(ifindex)
	if err != nil {
		return 0, err
	}
	for slot := range t.mem.devices {
		d := &t.mem.devices[slot]
		if d.Ifindex != 0 {
			continue
		}
		store(&d.Mac, macWord(mac))
		atomic.StoreUint32(&d.Ifindex, uint32(ifindex))
		t.devices[ifindex] = slot
		return slot, nil
	}
	return 0, fmt.Errorf("devices: interface %d: at most %d interfaces may lead to backends", ifindex, len(t.mem.devices))
}

// refreshDevices follows interfaces that changed their address.
func (t *hopTable) refreshDevices() {
	for ifindex, slot := range t.devices {
		if mac, err := t.mac(ifindex); err == nil {
			store(&t.mem.devices[slot].Mac, macWord(mac))
		}
	}
}

// release makes retired words free. The caller has waited for a grace period.
func (t *hopTable) release(retired []uint32) {
	for _, i := range retired {
		store(&t.mem.nexthops[i], 0)
		t.pool.free(i)
	}
}

// adopt finds the next hop of a word that a backend refers to, and takes a reference. nil: unresolved.
func (t *hopTable) adopt(index uint32) *hopRef {
	if index == 0 || int(index) >= len(t.mem.nexthops) {
		return nil
	}
	word := t.mem.nexthops[index]
	slot := int(word>>muxNexthopBitNEXTHOP_DEVICE_SHIFT) & (len(t.mem.devices) - 1)
	if word>>muxNexthopBitNEXTHOP_VALID_SHIFT == 0 || t.mem.devices[slot].Ifindex == 0 {
		return nil
	}
	hop := NextHop{MAC: macOf(word), Ifindex: int(t.mem.devices[slot].Ifindex)}
	ref := t.byHop[hop]
	if ref == nil || ref.index != index {
		if !t.pool.reserve(index) {
			return nil
		}
		ref = &hopRef{NextHop: hop, index: index}
		t.byHop[hop] = ref
	}
	ref.refs++
	return ref
}

// adoptDevices learns which slot is whose.
func (t *hopTable) adoptDevices() {
	for slot, d := range t.mem.devices {
		if d.Ifindex != 0 {
			t.devices[int(d.Ifindex)] = slot
		}
	}
}

// resolve points a backend record at the way that is wanted for its outer destination.
func (t *hopTable) resolve(b *backendRef) error {
	hop := t.wanted[b.outer]
	if b.hop != nil && b.hop.NextHop == hop || b.hop == nil && hop == (NextHop{}) {
		return nil
	}
	var next *hopRef
	index := uint32(0)
	if hop != (NextHop{}) {
		var err error
		if next, err = t.get(hop); err != nil {
			return fmt.Errorf("next hop of %s: %w", b.outer, err)
		}
		index = next.index
	}
	atomic.StoreUint32(&t.mem.backends[b.index].Nexthop, index)
	t.put(b.hop)
	b.hop = next
	return nil
}
