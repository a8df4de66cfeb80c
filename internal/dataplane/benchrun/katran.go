package benchrun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/dataplane"
)

// Katran is Katran's balancer, loaded from an object that its own sources gave, with its maps filled as its own
// userspace fills them. It is measured beside the mux; nothing of it is part of Shunt.
type Katran struct {
	collection *ebpf.Collection
	lru        *ebpf.Map // connections of the CPU that packets run on; nil: connections are not remembered
	tables     KatranTables
	maxVIPs    uint32
}

// KatranTables says what Katran balances.
type KatranTables struct {
	Family Family
	VIPs   uint32
	Reals  []netip.Addr
	// Sets are the possible pools: indices into Reals and a Maglev ring of KatranRing slots, whose values are indices
	// into the set's members. VIP i has set i modulo their number.
	Sets []KatranSet
	// Flows is the number of connections that the LRU of a CPU has room for; 0: VIPs bypass it.
	Flows uint32
	// CPU is where packets run. The others have no LRU.
	CPU int
}

// KatranSet is a pool of reals.
type KatranSet struct {
	Reals []int
	Ring  []uint16
}

// KatranRing is the number of slots of Katran's rings.
const KatranRing = 65537

// Katran's names, and the flags and counters that are used here, as its balancer_consts.h numbers them. Counters stand
// in map stats behind those of MAX_VIPS VIPs.
const (
	katranProgram   = "balancer_ingress"
	katranLRUBypass = 1 << 1
	katranRealIPv6  = 1 << 0
	katranLRUCount  = 0 // packets; those that their flow's connection was not found for
	katranFallback  = 3 // packets on CPUs without LRU
	katranSent      = 17
)

// katranSlot is the room of a 32-bit value in the kernel's arrays.
const katranSlot = 8

// Keys and values of Katran's maps. Addresses, ports and those of IPv4 in the first four bytes of Address, are in network
// order.
type (
	katranVIP struct {
		Address  [16]byte
		Port     [2]byte
		Protocol uint8
		Rsv      uint8
	}
	katranVIPMeta struct{ Flags, Number uint32 }
	katranReal    struct {
		Address [16]byte
		Flags   uint8
		Rsv     [3]uint8
	}
	katranFlow struct {
		Client, VIP      [16]byte
		ClientPort, Port [2]byte
		Protocol         uint8
		Rsv              [3]uint8
	}
	katranPosition struct {
		Real, Rsv uint32
		Time      uint64
	}
	katranStats struct{ V1, V2 uint64 }
)

// OpenKatran loads the object and fills its maps.
func OpenKatran(object string, tables KatranTables) (_ *Katran, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("remove memlock limit: %w", err)
	}
	spec, err := ebpf.LoadCollectionSpec(object)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", object, err)
	}
	k := &Katran{tables: tables}
	if err := k.size(spec); err != nil {
		return nil, fmt.Errorf("%s: %w", object, err)
	}
	if k.collection, err = ebpf.NewCollection(spec); err != nil {
		return nil, fmt.Errorf("load %s: %w", object, err)
	}
	defer func() {
		if err != nil {
			k.Close()
		}
	}()
	if err := k.fill(spec); err != nil {
		return nil, fmt.Errorf("fill Katran's maps: %w", err)
	}
	return k, nil
}

// fill writes all maps.
func (k *Katran) fill(spec *ebpf.CollectionSpec) error {
	if err := k.fillReals(); err != nil {
		return err
	}
	if err := k.fillRings(); err != nil {
		return err
	}
	if err := k.fillVIPs(); err != nil {
		return err
	}
	return k.makeLRU(spec)
}

// size checks that the object is what this file knows, and gives the table of rings the size that is needed. Rings are
// written through a mapping: there may be 20,000.
func (k *Katran) size(spec *ebpf.CollectionSpec) error {
	for _, name := range []string{"vip_map", "lru_mapping", "ch_rings", "reals", "stats", "ctl_array"} {
		if spec.Maps[name] == nil {
			return fmt.Errorf("no map %s: want Katran's balancer.bpf.o", name)
		}
	}
	program := spec.Programs[katranProgram]
	if program == nil {
		return fmt.Errorf("no program %s: want Katran's balancer.bpf.o", katranProgram)
	}
	k.maxVIPs = spec.Maps["stats"].MaxEntries / 2
	if rings := spec.Maps["ch_rings"]; rings.MaxEntries != k.maxVIPs*KatranRing {
		return fmt.Errorf("%d slots in rings of %d VIPs: want RING_SIZE %d", rings.MaxEntries, k.maxVIPs, KatranRing)
	}
	if k.tables.VIPs > k.maxVIPs {
		return fmt.Errorf("%d VIPs: want at most %d (MAX_VIPS)", k.tables.VIPs, k.maxVIPs)
	}
	if reals := spec.Maps["reals"].MaxEntries; len(k.tables.Reals) >= int(reals) {
		return fmt.Errorf("%d reals: want less than %d (MAX_REALS)", len(k.tables.Reals), reals)
	}
	spec.Maps["ch_rings"].MaxEntries = k.tables.VIPs * KatranRing
	spec.Maps["ch_rings"].Flags |= unix.BPF_F_MMAPABLE
	program.Flags |= xdpHasFrags
	return nil
}

// Close frees program and maps.
func (k *Katran) Close() error {
	var err error
	if k.lru != nil {
		err = k.lru.Close()
	}
	k.collection.Close()
	return err
}

// Target is the program.
func (k *Katran) Target() Target {
	return Target{name: "katran", program: k.collection.Programs[katranProgram]}
}

// realID is the number of a real in Katran's maps: 0 is none.
func realID(index int) uint32 { return uint32(index) + 1 }

// fillReals writes the reals and the address of the default router.
func (k *Katran) fillReals() error {
	for i, address := range k.tables.Reals {
		value := katranReal{Address: katranAddress(address)}
		if address.Is6() {
			value.Flags = katranRealIPv6
		}
		if err := k.collection.Maps["reals"].Put(realID(i), value); err != nil {
			return fmt.Errorf("real %s: %w", address, err)
		}
	}
	router := [8]byte{2, 0, 0, 0, 0, 1}
	if err := k.collection.Maps["ctl_array"].Put(uint32(0), router); err != nil {
		return fmt.Errorf("router's address: %w", err)
	}
	return nil
}

// fillRings writes the ring of every VIP.
func (k *Katran) fillRings() error {
	rings := make([][]byte, len(k.tables.Sets))
	for s, set := range k.tables.Sets {
		if len(set.Ring) != KatranRing {
			return fmt.Errorf("ring of %d slots: want %d", len(set.Ring), KatranRing)
		}
		rings[s] = make([]byte, KatranRing*katranSlot)
		for slot, member := range set.Ring {
			binary.LittleEndian.PutUint32(rings[s][slot*katranSlot:], realID(set.Reals[member]))
		}
	}
	size, page := int(k.tables.VIPs)*KatranRing*katranSlot, unix.Getpagesize()
	size = (size + page - 1) / page * page
	table, err := unix.Mmap(k.collection.Maps["ch_rings"].FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the rings: %w", err)
	}
	for i := range int(k.tables.VIPs) {
		copy(table[i*KatranRing*katranSlot:], rings[i%len(rings)])
	}
	if err := unix.Munmap(table); err != nil {
		return fmt.Errorf("unmap the rings: %w", err)
	}
	return nil
}

// fillVIPs writes the VIPs.
func (k *Katran) fillVIPs() error {
	var flags uint32
	if k.tables.Flows == 0 {
		flags = katranLRUBypass
	}
	for i := range k.tables.VIPs {
		address := k.tables.Family.VIP(i)
		key := katranVIP{Address: katranAddress(address), Port: katranPort(Port), Protocol: protoTCP}
		if err := k.collection.Maps["vip_map"].Put(key, katranVIPMeta{flags, i}); err != nil {
			return fmt.Errorf("VIP %s: %w", address, err)
		}
	}
	return nil
}

// makeLRU makes the connection table of the CPU.
func (k *Katran) makeLRU(spec *ebpf.CollectionSpec) (err error) {
	if k.tables.Flows == 0 {
		return nil
	}
	inner := spec.Maps["lru_mapping"].InnerMap.Copy()
	inner.Name, inner.MaxEntries = "katran_lru", k.tables.Flows
	if k.lru, err = ebpf.NewMap(inner); err != nil {
		return fmt.Errorf("connection table: %w", err)
	}
	if err := k.collection.Maps["lru_mapping"].Put(uint32(k.tables.CPU), k.lru); err != nil {
		return fmt.Errorf("connection table of CPU %d: %w", k.tables.CPU, err)
	}
	return nil
}

// Check compares the frame that the program made of a packet with the maps: it goes to a real of the VIP and, where
// connections are remembered, to the one that is noted for it.
func (k *Katran) Check(run Run) error {
	outer, err := run.Outer(k.tables.Family)
	if err != nil {
		return fmt.Errorf("%+v: verdict %d: %w", run.Last, run.Verdict, err)
	}
	index, vip := -1, k.tables.Family.vipNumber(run.Last.VIP)
	for _, i := range k.tables.Sets[int(vip)%len(k.tables.Sets)].Reals {
		if k.tables.Reals[i] == outer.Destination {
			index = i
		}
	}
	if index < 0 {
		return fmt.Errorf("%+v: sent to %s: want a real of the VIP", run.Last, outer.Destination)
	}
	if k.lru == nil {
		return nil
	}
	var noted katranPosition
	if err := k.lru.Lookup(flowOf(run.Last), &noted); err != nil {
		return fmt.Errorf("%+v: look up the connection: %w", run.Last, err)
	}
	if noted.Real != realID(index) {
		return fmt.Errorf("%+v: sent to real %d: want %d, which is noted", run.Last, realID(index), noted.Real)
	}
	return nil
}

// Knows tells whether the flow of a packet is in the connection table.
func (k *Katran) Knows(p dataplane.Packet) (bool, error) {
	var noted katranPosition
	err := k.lru.Lookup(flowOf(p), &noted)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil, err
}

// KatranCounters are sums over all CPUs.
type KatranCounters struct {
	Sent     uint64 // packets that were encapsulated
	Missed   uint64 // packets whose connection was not known
	Fallback uint64 // packets on CPUs without connection table
}

// Counters reads them.
func (k *Katran) Counters() (c KatranCounters, err error) {
	read := func(counter uint32) (sum katranStats) {
		var values []katranStats
		if lookup := k.collection.Maps["stats"].Lookup(k.maxVIPs+counter, &values); lookup != nil && err == nil {
			err = fmt.Errorf("read Katran's counter %d: %w", counter, lookup)
		}
		for _, v := range values {
			sum.V1, sum.V2 = sum.V1+v.V1, sum.V2+v.V2
		}
		return sum
	}
	return KatranCounters{Sent: read(katranSent).V1, Missed: read(katranLRUCount).V2, Fallback: read(katranFallback).V1}, err
}

// flowOf is the key of a packet's connection.
func flowOf(p dataplane.Packet) katranFlow {
	return katranFlow{
		Client: katranAddress(p.Client), VIP: katranAddress(p.VIP),
		ClientPort: katranPort(p.ClientPort), Port: katranPort(p.Port), Protocol: protoTCP,
	}
}

// katranAddress is an address as Katran's maps have it.
func katranAddress(a netip.Addr) (b [16]byte) {
	copy(b[:], a.AsSlice())
	return b
}

// katranPort is a port as Katran's maps have it.
func katranPort(port uint16) (b [2]byte) {
	binary.BigEndian.PutUint16(b[:], port)
	return b
}
