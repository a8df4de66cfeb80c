package dataplane

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"structs"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// Pins of flows that another program uses: those of versions 1 and 2, and a table of another size.
const (
	hostMapFlowsTwo       = "flows"
	hostMapSubstitutesTwo = "substitutes"
	hostPinFormerTags     = "flow_tags_was"
	hostPinFormerRecords  = "flow_records_was"
	hostPinFormerCookies  = "flow_cookies_was"
)

var formerFlowPins = []string{hostMapFlowsTwo, hostMapSubstitutesTwo, hostPinFormerTags, hostPinFormerRecords, hostPinFormerCookies}

// formerTable is the name of the table that is pinned by a name: a table that was put aside keeps its own.
func formerTable(pin string) string { return strings.TrimSuffix(pin, "_was") }

// flowKeyTwo is the key of the map "flows" of version 2: a flow as the server sees it.
type flowKeyTwo struct {
	_            structs.HostLayout
	Dip          [16]uint8
	Client       [16]uint8
	Vni          uint32
	DipPortBe    uint16
	ClientPortBe uint16
	Protocol     uint8
	Rsv          [7]uint8
}

// flowTwo is what that map had of a flow.
type flowTwo struct {
	_            structs.HostLayout
	Vip          [16]uint8
	VipPortBe    uint16
	ClientPortBe uint16
	Mss          uint16
	Binding      uint16
}

// sizeFlows gives the tables and the program the size of the flow table and its key. A pinned table of another size is put aside: the
// attached program goes on with it.
func sizeFlows(spec *ebpf.CollectionSpec, o HostOptions) (hostFlowSetup, error) {
	var setup hostFlowSetup
	size, err := pinnedFlows(filepath.Join(o.Dir, hostMapFlowTags))
	if err != nil {
		return setup, err
	}
	want := o.Flows
	switch {
	case want == 0 && size != 0:
		want = size
	case want == 0:
		want = DefaultHostFlows
	}
	if size != 0 {
		if err := spec.Variables[hostVarHostFlowsBeside].Set(uint32(1)); err != nil {
			return setup, fmt.Errorf("set %s: %w", hostVarHostFlowsBeside, err)
		}
	}
	if size != 0 && size != want {
		if err := asideFlows(o.Dir); err != nil {
			return setup, err
		}
	}
	spec.Maps[hostMapFlowTags].MaxEntries = want / uint32(flowWays)
	spec.Maps[hostMapFlowRecords].MaxEntries = want
	spec.Maps[hostMapFlowCookies].MaxEntries = want
	if setup, err = pinnedSetup(o.Dir); err != nil {
		return setup, err
	}
	if err := spec.Variables[hostVarFlowMask].Set(want/uint32(flowWays) - 1); err != nil {
		return setup, fmt.Errorf("set %s: %w", hostVarFlowMask, err)
	}
	if err := spec.Variables[hostVarFlowKey].Set(setup.Key); err != nil {
		return setup, fmt.Errorf("set %s: %w", hostVarFlowKey, err)
	}
	return setup, nil
}

// pinnedFlows is the size of a pinned table of flows, 0 when there is none.
func pinnedFlows(pin string) (uint32, error) {
	m, err := ebpf.LoadPinnedMap(pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open pinned flow table: %w", err)
	}
	defer m.Close()
	return m.MaxEntries() * uint32(flowWays), nil
}

// pinnedSetup is the key that the pinned table has, or a new one.
func pinnedSetup(dir string) (hostFlowSetup, error) {
	var s hostFlowSetup
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, hostMapFlowSetups), nil)
	if err == nil {
		err = m.Lookup(uint32(0), &s)
		m.Close()
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return s, fmt.Errorf("read the flow table's key: %w", err)
	}
	if s.Key.K0|s.Key.K1 == 0 {
		var b [16]byte
		rand.Read(b[:])
		s.Key.K0, s.Key.K1 = binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])
	}
	return s, nil
}

// checkFlows refuses sizes that no flow table has; 0 stands for that of the pins.
func checkFlows(n uint32) error {
	if n != 0 && (n < MinHostFlows || n > MaxHostFlows || n&(n-1) != 0) {
		return fmt.Errorf("flows: %d: must be a power of two from %d to %d", n, MinHostFlows, MaxHostFlows)
	}
	return nil
}

// finishResize ends a change of the flow table's size that was interrupted, where another size is wanted now: flows may be in both tables, and
// only one can be put aside.
func finishResize(o HostOptions) error {
	if err := mendFlows(o.Dir); err != nil {
		return err
	}
	size, err := pinnedFlows(filepath.Join(o.Dir, hostMapFlowTags))
	if err != nil || size == 0 || o.Flows == 0 || o.Flows == size {
		return err
	}
	if _, err := os.Stat(filepath.Join(o.Dir, hostPinFormerTags)); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("look for a former flow table: %w", err)
	}
	o.Flows = size
	h, err := OpenHost(o)
	if err != nil {
		return fmt.Errorf("end an interrupted change of the flow table's size: %w", err)
	}
	return h.Close()
}

// asideFlows puts a table away whose size is not wanted any more. No other is aside: finishResize came before.
func asideFlows(dir string) error {
	for _, p := range besideTags {
		if err := os.Rename(filepath.Join(dir, p.pin), filepath.Join(dir, p.was)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("put the flow table aside: %w", err)
		}
	}
	if err := os.Rename(filepath.Join(dir, hostMapFlowTags), filepath.Join(dir, hostPinFormerTags)); err != nil {
		return fmt.Errorf("put the flow table aside: %w", err)
	}
	return nil
}

// besideTags are the pins that go with those of tags, and what they are when they are put aside. Tables of former agents have no clocks.
var besideTags = []struct{ pin, was string }{{hostMapFlowRecords, hostPinFormerRecords}, {hostMapFlowCookies, hostPinFormerCookies}}

// mendFlows undoes half of what asideFlows does: tags that are there have what is beside them.
func mendFlows(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, hostMapFlowTags)); err != nil {
		return nil
	}
	for _, p := range besideTags {
		if _, err := os.Stat(filepath.Join(dir, p.pin)); !errors.Is(err, os.ErrNotExist) {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, hostPinFormerTags)); err == nil {
			continue // what is aside is of other tags
		}
		if err := os.Rename(filepath.Join(dir, p.was), filepath.Join(dir, p.pin)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("put the flow table back: %w", err)
		}
	}
	return nil
}

// migrateFlows brings in the flows of tables that were put aside and those of version 2, so that flows survive. Done before the
// programs are replaced, and once more after: for flows that began meanwhile. What there is no room for is left out.
func (h *Host) migrateFlows() error {
	if err := h.migrateFormer(); err != nil {
		return err
	}
	return h.migrateTwo()
}

// migrateFormer copies from a table of another size.
func (h *Host) migrateFormer() error {
	tags, err := ebpf.LoadPinnedMap(filepath.Join(h.dir, hostPinFormerTags), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the former flow table: %w", err)
	}
	defer tags.Close()
	records, err := ebpf.LoadPinnedMap(filepath.Join(h.dir, hostPinFormerRecords), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil // tags that never had records
	}
	if err != nil {
		return fmt.Errorf("open the former flow table: %w", err)
	}
	defer records.Close()
	clocks, err := ebpf.LoadPinnedMap(filepath.Join(h.dir, hostPinFormerCookies), nil)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("open the former flow table: %w", err)
	}
	if clocks != nil {
		defer clocks.Close()
	}
	old, err := h.flows.mapFormer(tags, records, clocks)
	if err != nil {
		return err
	}
	defer old.close()
	tick := tagTick(h.now())
	old.all(tick, func(tag flowTag, r *hostFlowRecord) { h.flows.insert(*r, old.clock(r), tag.class(), uint64(tag), tick) })
	return nil
}

// migrateTwo copies the flows of version 2, which did not know how old they are.
func (h *Host) migrateTwo() error {
	flows, err := ebpf.LoadPinnedMap(filepath.Join(h.dir, hostMapFlowsTwo), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open flows of version %d: %w", hostABISecond, err)
	}
	defer flows.Close()
	tick := tagTick(h.now())
	var k flowKeyTwo
	var v flowTwo
	it := flows.Iterate()
	for it.Next(&k, &v) {
		if err := h.insertTwo(&k, &v, tick); err != nil {
			return err
		}
	}
	// The map is in use and forgets the least recently used: an iteration that lost its place has seen most of it.
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read flows of version %d: %w", hostABISecond, err)
	}
	return nil
}

func (h *Host) insertTwo(k *flowKeyTwo, v *flowTwo, tick uint64) error {
	dip, err := h.flows.addrs.number(k.Dip)
	if err != nil {
		return err
	}
	vip, err := h.flows.addrs.number(v.Vip)
	if err != nil {
		return err
	}
	r := hostFlowRecord{Client: k.Client, Dip: dip, Vip: vip, DipPortBe: k.DipPortBe, PeerPortBe: k.ClientPortBe, VipPortBe: v.VipPortBe,
		ClientPortBe: v.ClientPortBe, Scope: k.Vni<<8 | uint32(k.Protocol), Mss: v.Mss, Binding: v.Binding, Seen: uint32(tick)}
	idle := lb.DefaultHostIdle
	until := tick + uint64(idleTicks(idle.Established))
	switch lb.Protocol(k.Protocol) {
	case lb.TCP:
	case lb.UDP:
		until = tick + uint64(idleTicks(idle.UDP))
	default:
		until = tick + uint64(idleTicks(idle.Other))
	}
	h.flows.insert(r, hostEvc{}, FlowTrusted, until, tick)
	if r.PeerPortBe != r.ClientPortBe {
		store(&h.flows.setup.Aliases, 1)
		alias := r
		alias.Kind = uint8(hostFlowKindFLOW_ALIAS)
		alias.Dip, alias.DipPortBe, alias.PeerPortBe = r.Vip, r.VipPortBe, r.ClientPortBe
		alias.Vip, alias.VipPortBe, alias.ClientPortBe = r.Dip, r.DipPortBe, r.PeerPortBe
		h.flows.insert(alias, hostEvc{}, FlowTrusted, until, tick)
	}
	return nil
}
