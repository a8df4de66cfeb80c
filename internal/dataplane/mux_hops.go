package dataplane

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
)

// hopTable turns next hops into the words of backend records (enum nexthop_bit).
type hopTable struct {
	mem     *muxMemory
	wanted  map[netip.Addr]NextHop
	devices map[deviceKey]int // -> slot; slots are never used for another device
	// mac finds the address of an interface.
	mac func(ifindex int) ([6]byte, error)
}

// deviceKey is an interface with the VLAN tag that frames get on it (NextHop.Tag).
type deviceKey struct {
	ifindex int
	tag     uint32
}

// deviceOf reads back what a record is of.
func deviceOf(d *muxDevice) deviceKey {
	return deviceKey{int(d.Ifindex &^ (1 << muxDeviceBitDEVICE_TAGGED_SHIFT)), be32(d.Vlan)}
}

func newHopTable(mem *muxMemory) hopTable {
	return hopTable{mem: mem, mac: interfaceMAC, wanted: map[netip.Addr]NextHop{}, devices: map[deviceKey]int{}}
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

// word is the word of a next hop, 0 for none.
func (t *hopTable) word(hop NextHop) (uint64, error) {
	if hop == (NextHop{}) {
		return 0, nil
	}
	device, err := t.device(deviceKey{hop.Ifindex, hop.Tag})
	if err != nil {
		return 0, err
	}
	return macWord(hop.MAC) | uint64(device)<<muxNexthopBitNEXTHOP_DEVICE_SHIFT | 1<<muxNexthopBitNEXTHOP_VALID_SHIFT, nil
}

// device finds or makes the slot of an interface.
func (t *hopTable) device(k deviceKey) (int, error) {
	if slot, ok := t.devices[k]; ok {
		return slot, nil
	}
	mac, err := t.mac(k.ifindex)
	if err != nil {
		return 0, err
	}
	for slot := range t.mem.devices {
		d := &t.mem.devices[slot]
		if d.Ifindex != 0 {
			continue
		}
		store(&d.Mac, macWord(mac))
		index := uint32(k.ifindex)
		if k.tag != 0 {
			d.Vlan = be32(k.tag)
			index |= 1 << muxDeviceBitDEVICE_TAGGED_SHIFT
		}
		atomic.StoreUint32(&d.Ifindex, index)
		t.devices[k] = slot
		return slot, nil
	}
	return 0, fmt.Errorf("devices: interface %d: at most %d interfaces and VLANs may lead to backends", k.ifindex, len(t.mem.devices))
}

// refreshDevices follows interfaces that changed their address.
func (t *hopTable) refreshDevices() {
	for k, slot := range t.devices {
		if mac, err := t.mac(k.ifindex); err == nil {
			store(&t.mem.devices[slot].Mac, macWord(mac))
		}
	}
}

// hop is the inverse of word.
func (t *hopTable) hop(word uint64) NextHop {
	slot := int(word>>muxNexthopBitNEXTHOP_DEVICE_SHIFT) & (len(t.mem.devices) - 1)
	if word>>muxNexthopBitNEXTHOP_VALID_SHIFT == 0 || t.mem.devices[slot].Ifindex == 0 {
		return NextHop{}
	}
	k := deviceOf(&t.mem.devices[slot])
	return NextHop{MAC: macOf(word), Ifindex: k.ifindex, Tag: k.tag}
}

// adoptDevices learns which slot is whose.
func (t *hopTable) adoptDevices() {
	for slot := range t.mem.devices {
		if d := &t.mem.devices[slot]; d.Ifindex != 0 {
			t.devices[deviceOf(d)] = slot
		}
	}
}

// resolve publishes the way that is wanted for a backend's outer destination. On error there is none, and the program
// asks the kernel.
func (t *hopTable) resolve(b *backendRef) error {
	word, err := t.word(t.wanted[b.outer])
	store(&t.mem.backends[b.index].Nexthop, word)
	if err != nil {
		return fmt.Errorf("next hop of %s: %w", b.outer, err)
	}
	return nil
}
