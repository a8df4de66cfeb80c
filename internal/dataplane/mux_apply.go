package dataplane

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// change is a step from what the tables hold to what they should: everything in it has been written to places that no
// reader sees yet. Exactly one of publish and undo is called; after publish and a grace period, release.
type change struct {
	t     *muxTables
	undos []func()
	// Published in this order: what is named before what names it, then what is taken away.
	guards, members, rings, slots, ranges, gone []func()
	released                                    []func()
	vips                                        []lb.EndpointKey          // staged, each once, in the order of the endpoints
	staged                                      map[lb.EndpointKey]bool   // the same VIPs
	moved                                       map[*muxEntry]bool        // their staged records name the members' old place
	guardOf                                     map[lb.EndpointKey]uint32 // by VIP: index + 1; VIPs without a guard are not in it
}

func (c *change) undo() {
	for _, f := range slices.Backward(c.undos) {
		f()
	}
}

func (c *change) publish() {
	for _, phase := range [][]func(){c.guards, c.members, c.rings, c.slots, c.ranges, c.gone} {
		for _, f := range phase {
			f()
		}
	}
}

// needsGrace says whether anything that readers may hold is to be used again.
func (c *change) needsGrace() bool { return len(c.released) > 0 }

func (c *change) release() {
	for _, f := range c.released {
		f()
	}
}

// checkState refuses states that could not be right.
func checkState(s MuxState) error {
	if err := checkEndpoints(s.Endpoints); err != nil {
		return err
	}
	if err := checkRanges(s.Endpoints); err != nil {
		return err
	}
	if err := checkVIPs(s.VIPs); err != nil {
		return err
	}
	families := map[bool]bool{}
	for _, p := range s.TunnelSources {
		if families[p.Addr().Is4()] {
			return fmt.Errorf("tunnel source %s: at most one prefix of each family", p)
		}
		if p.Bits() < 0 || p.Addr().Is6() && p.Bits() > 64 {
			return fmt.Errorf("tunnel source %s: an IPv6 prefix must have at most 64 bits", p)
		}
		families[p.Addr().Is4()] = true
	}
	for slot := range s.RingKeys {
		if uint32(slot) >= uint32(muxLimitLIMIT_RING_KEYS) {
			return fmt.Errorf("ring key slot %d: must be below %d", slot, muxLimitLIMIT_RING_KEYS)
		}
	}
	return nil
}

// checkSources refuses members whose tunnel would have no source.
func checkSources(s MuxState) error {
	has := map[bool]bool{}
	for _, p := range s.TunnelSources {
		has[p.Addr().Is4()] = true
	}
	for _, e := range s.Endpoints {
		for _, m := range e.Members {
			if !has[m.Outer.Is4()] {
				return fmt.Errorf("endpoint %v: member %d: outer destination %s: no tunnel source of its family", e.Key, m.ID, m.Outer)
			}
		}
	}
	return nil
}

func checkEndpoint(e MuxEndpoint) error {
	switch {
	case !e.Key.VIP.IsValid() || e.Key.VIP.Is4In6():
		return fmt.Errorf("VIP %v: must be an IPv4 or IPv6 address", e.Key.VIP)
	case e.Key.Protocol != lb.TCP && e.Key.Protocol != lb.UDP && e.Key.Protocol != lb.AnyProtocol:
		return fmt.Errorf("protocol %d: must be 6 (tcp), 17 (udp) or 255 (any)", e.Key.Protocol)
	case e.Key.VNI != 0:
		return fmt.Errorf("VNI %d: not supported by this version", e.Key.VNI)
	case uint32(e.KeySlot) >= uint32(muxLimitLIMIT_RING_KEYS):
		return fmt.Errorf("ring key slot %d: must be below %d", e.KeySlot, muxLimitLIMIT_RING_KEYS)
	}
	if e.KeepRings && (e.Ring != nil || e.BackupRing != nil) {
		return errors.New("rings: both given and to be kept")
	}
	for i, r := range [2][]uint16{e.Ring, e.BackupRing} {
		code := [2]uint8{e.RingCode, e.BackupCode}[i]
		low, high := uint8(muxLimitLIMIT_RING_CODE_MIN), uint8(muxLimitLIMIT_RING_CODE_MAX)
		if len(r) > 0 && (code < low || code > high || len(r) != 1<<code) {
			return fmt.Errorf("ring of %d slots with size code %d: must have 1<<code, code %d to %d", len(r), code, low, high)
		}
	}
	for _, err := range []error{checkPorts(e.Key), checkIdentity(e)} {
		if err != nil {
			return err
		}
	}
	if err := checkMembers(e); err != nil {
		return err
	}
	return checkOuters(e)
}

// stage writes the wanted state beside the present one. On error nothing has changed.
func (t *muxTables) stage(s MuxState) (*change, error) {
	c := &change{t: t, staged: map[lb.EndpointKey]bool{}, moved: map[*muxEntry]bool{}}
	if err := c.stage(s); err != nil {
		c.undo()
		return nil, err
	}
	return c, nil
}

func (c *change) stage(s MuxState) error {
	wanted, err := wantedKeys(s.Endpoints)
	if err != nil {
		return err
	}
	if err := checkState(s); err != nil {
		return err
	}
	if err := checkSources(s); err != nil {
		return err
	}
	if err := c.stageGuards(s.VIPs, wanted); err != nil {
		return err
	}
	for i, e := range s.Endpoints {
		var err error
		if i == 0 || vipKey(e.Key) != vipKey(s.Endpoints[i-1].Key) {
			err = c.vip(vipKey(e.Key))
		}
		if err == nil {
			err = c.endpoint(e)
		}
		if err != nil {
			return fmt.Errorf("endpoint %v: %w", e.Key, err)
		}
	}
	if err := c.stageRanges(s.Endpoints); err != nil {
		return err
	}
	if err := c.stageVIPs(s); err != nil {
		return err
	}
	for key, entry := range c.t.entries {
		if !wanted[key] {
			c.remove(key, entry)
		}
	}
	c.rings = slices.Insert(c.rings, 0, func() { c.t.configure(s) })
	return nil
}

// wantedKeys are the keys of endpoints and of their VIPs. Endpoints of a VIP come one after the other as a rule.
func wantedKeys(endpoints []MuxEndpoint) (map[lb.EndpointKey]bool, error) {
	wanted := make(map[lb.EndpointKey]bool, 2*len(endpoints))
	for i, e := range endpoints {
		if wanted[e.Key] {
			return nil, fmt.Errorf("endpoint %v: given twice", e.Key)
		}
		wanted[e.Key] = true
		if i == 0 || vipKey(e.Key) != vipKey(endpoints[i-1].Key) {
			wanted[vipKey(e.Key)] = true
		}
	}
	return wanted, nil
}

// vipKey is the key of the VIP itself.
func vipKey(k lb.EndpointKey) lb.EndpointKey { return lb.EndpointKey{VNI: k.VNI, VIP: k.VIP} }

// vip adds a VIP as such when it is not there.
func (c *change) vip(k lb.EndpointKey) error {
	if !c.staged[k] {
		c.staged[k] = true
		c.vips = append(c.vips, k)
	}
	if c.t.entries[k] != nil {
		return nil
	}
	_, err := c.add(k, uint32(muxEndpointFlagENDPOINT_VIP_ONLY))
	return err
}

// add makes an entry with an empty record; its slot is published last.
func (c *change) add(k lb.EndpointKey, flags uint32) (*muxEntry, error) {
	t := c.t
	index, ok := t.endpoints.alloc()
	if !ok {
		return nil, fmt.Errorf("endpoints: no room: at most %d, VIPs included (--max-endpoints)", t.mem.endpointCounts.size)
	}
	c.undos = append(c.undos, func() { t.endpoints.free(index) })
	slot, err := t.slots.place(k)
	if err != nil {
		return nil, err
	}
	c.undos = append(c.undos, func() { t.slots.unplace(k, slot) })
	t.mem.endpointCounts.clear(index)
	t.mem.pings[index] = 0
	e := &muxEntry{slot: slot, index: index, policy: uint64(flags) << muxPolicyShiftPOLICY_FLAGS_SHIFT}
	t.mem.slots[slot].Policy = e.policy
	t.entries[k] = e
	c.undos = append(c.undos, func() { delete(t.entries, k) })
	c.slots = append(c.slots, func() { t.slots.publish(slot, index) })
	return e, nil
}

// endpoint brings one endpoint to its wanted state.
func (c *change) endpoint(w MuxEndpoint) error {
	e, ok := c.t.entries[w.Key]
	if !ok && w.KeepRings {
		return errors.New("rings: to be kept, but none was applied")
	}
	if !ok {
		var err error
		if e, err = c.add(w.Key, 0); err != nil {
			return err
		}
	}
	// The policy first: it says that the members are about to move.
	if err := c.stagePolicy(e, w); err != nil {
		return err
	}
	// Most changes leave most members as they are.
	if !c.t.holds(e, w) {
		if err := checkKept(e, w); err != nil {
			return err
		}
		if err := c.stageMembers(e, w.Members, w.Encap); err != nil {
			return err
		}
	}
	return c.stageRings(e, w)
}

// stageRings gives the endpoint new rings where its present ones differ.
func (c *change) stageRings(e *muxEntry, w MuxEndpoint) error {
	t := c.t
	if w.KeepRings && e.adopted {
		return errors.New("rings: to be kept, but none was applied")
	}
	next, backup := e.rings, e.backup
	if e.adopted {
		// Which of the two the only one known is, it says itself.
		if len(w.BackupRing) > 0 && t.ringIs(e.rings[0], w.BackupCode, w.BackupRing) && !t.ringIs(e.rings[0], w.RingCode, w.Ring) {
			next, backup = [2]ringRef{1: e.rings[0]}, true
		}
		c.rings = append(c.rings, func() { e.adopted = false })
	}
	if e.rings[1].words == 0 && !backup {
		backup = w.UseBackup
	}
	for i, want := range [2][]uint16{w.Ring, w.BackupRing} {
		if w.KeepRings {
			break
		}
		var err error
		if next[i], err = c.stageRing(next[i], [2]uint8{w.RingCode, w.BackupCode}[i], want); err != nil {
			return err
		}
	}
	if next != e.rings || backup != e.backup || w.KeySlot != e.keySlot {
		c.rings = append(c.rings, func() {
			e.rings, e.backup, e.keySlot = next, backup, w.KeySlot
			store(&t.mem.slots[e.slot].Ring, ringWord(e.active(), e.keySlot))
		})
	}
	return nil
}

// ringIs compares a ring in the table with member ids.
func (t *muxTables) ringIs(r ringRef, code uint8, ring []uint16) bool {
	if len(ring) == 0 || r.words == 0 {
		return len(ring) == 0 && r.words == 0
	}
	return r.code == code && slices.Equal(t.slots16(r.block), ring)
}

// stageRing returns the present ring when it is the wanted one, else writes another: beside the present one, or in its place
// where the table has no room for both. Packets may meet slots of both meanwhile, whose members all are there.
func (c *change) stageRing(old ringRef, code uint8, ring []uint16) (ringRef, error) {
	t := c.t
	if t.ringIs(old, code, ring) {
		return old, nil
	}
	next, ok := block{}, true
	if len(ring) > 0 {
		next, ok = t.rings.alloc(uint32(len(ring) / slotsPerWord))
	}
	if !ok && old.words > 0 && old.code == code {
		c.rings = append(c.rings, func() { packRing(t.mem.rings[old.first:old.first+old.words], ring) })
		return old, nil
	}
	if old.words > 0 {
		c.released = append(c.released, func() { t.rings.free(old.block) })
	}
	if len(ring) == 0 {
		return ringRef{}, nil
	}
	if !ok {
		return ringRef{}, fmt.Errorf("rings: no room for %d slots: %d slots in all (--ring-slots)", len(ring), len(t.mem.rings)*slotsPerWord)
	}
	c.undos = append(c.undos, func() { t.rings.free(next) })
	copy(t.slots16(next), ring)
	return ringRef{next, code}, nil
}

// remove takes an entry out; what it owned is free after a grace period.
func (c *change) remove(k lb.EndpointKey, e *muxEntry) {
	t := c.t
	c.gone = append(c.gone, func() {
		t.slots.withdraw(k, e.slot)
		delete(t.entries, k)
		e.ripe = false // a sweep that goes on must not end the move
		t.own(e.block, nil)
		t.own(e.moved, nil)
	})
	c.released = append(c.released, func() {
		t.slots.release(e.slot)
		t.endpoints.free(e.index)
		t.rings.free(e.rings[0].block)
		t.rings.free(e.rings[1].block)
		t.limbo = append(t.limbo, e.block, e.moved)
		t.ports.free(e.ranges.block)
		t.freeExtra(e.extra)
	})
	for _, b := range e.members.all() {
		c.dropBackend(b)
	}
}

// configure writes keys and tunnel sources. A key goes into its slot before any ring that uses it is published.
func (t *muxTables) configure(s MuxState) {
	cfg := t.mem.config
	store(&cfg.Idle, t.longestIdle(s))
	cfg.AbiVersion = uint32(muxLimitLIMIT_ABI_VERSION)
	for slot, key := range s.RingKeys {
		cfg.RingKeys[slot].K0 = binary.LittleEndian.Uint64(key[:8])
		cfg.RingKeys[slot].K1 = binary.LittleEndian.Uint64(key[8:])
	}
	for _, p := range s.TunnelSources {
		p = p.Masked()
		if p.Addr().Is4() {
			a := p.Addr().As4()
			cfg.Outer4BaseBe = binary.NativeEndian.Uint32(a[:])
			cfg.Outer4MaskBe = be32(uint32(uint64(1)<<(32-p.Bits()) - 1))
		} else {
			cfg.Outer6Base = p.Addr().As16()
		}
	}
}

// be32 stores a number so that its bytes lie in network order.
func be32(v uint32) uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, v))
}

// tunnelSources reads the prefixes back.
func (t *muxTables) tunnelSources() (out []netip.Prefix) {
	cfg := t.mem.config
	if cfg.Outer4BaseBe != 0 {
		var a [4]byte
		binary.NativeEndian.PutUint32(a[:], cfg.Outer4BaseBe)
		out = append(out, netip.PrefixFrom(netip.AddrFrom4(a), 32-int(log2(be32(cfg.Outer4MaskBe)+1))))
	}
	if cfg.Outer6Base != [16]byte{} {
		out = append(out, netip.PrefixFrom(netip.AddrFrom16(cfg.Outer6Base), 64))
	}
	return out
}

// sortedIDs orders members by id, so that equal states are staged in equal steps.
func sortedIDs(members []MuxMember) []MuxMember {
	return slices.SortedFunc(slices.Values(members), func(a, b MuxMember) int { return cmp.Compare(a.ID, b.ID) })
}
