package dataplane

import (
	"cmp"
	"encoding/binary"
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
	// Published in this order: members before rings before slots, then what is taken away.
	members, rings, slots, gone []func()
	released                    []func()
}

func (c *change) undo() {
	for _, f := range slices.Backward(c.undos) {
		f()
	}
}

func (c *change) publish() {
	for _, phase := range [][]func(){c.members, c.rings, c.slots, c.gone} {
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
	seen := make(map[lb.EndpointKey]bool, len(s.Endpoints))
	for _, e := range s.Endpoints {
		if seen[e.Key] {
			return fmt.Errorf("endpoint %v: given twice", e.Key)
		}
		seen[e.Key] = true
		if err := checkEndpoint(e); err != nil {
			return fmt.Errorf("endpoint %v: %w", e.Key, err)
		}
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
	case e.Key.Protocol != lb.TCP && e.Key.Protocol != lb.UDP:
		return fmt.Errorf("protocol %d: must be 6 (tcp) or 17 (udp)", e.Key.Protocol)
	case e.Key.VNI != 0:
		return fmt.Errorf("VNI %d: not supported by this version", e.Key.VNI)
	case uint32(e.KeySlot) >= uint32(muxLimitLIMIT_RING_KEYS):
		return fmt.Errorf("ring key slot %d: must be below %d", e.KeySlot, muxLimitLIMIT_RING_KEYS)
	}
	low, high := uint8(muxLimitLIMIT_RING_CODE_MIN), uint8(muxLimitLIMIT_RING_CODE_MAX)
	if len(e.Ring) > 0 && (e.RingCode < low || e.RingCode > high || len(e.Ring) != 1<<e.RingCode) {
		return fmt.Errorf("ring of %d slots with size code %d: must have 1<<code, code %d to %d", len(e.Ring), e.RingCode, low, high)
	}
	ids := make(map[uint16]bool, len(e.Members))
	for _, m := range e.Members {
		if ids[m.ID] {
			return fmt.Errorf("member %d: given twice", m.ID)
		}
		ids[m.ID] = true
		if !m.Outer.IsValid() {
			return fmt.Errorf("member %d: has no outer destination", m.ID)
		}
	}
	for slot, id := range e.Ring {
		if !ids[id] {
			return fmt.Errorf("ring slot %d: member %d is not among the members", slot, id)
		}
	}
	return nil
}

// stage writes the wanted state beside the present one. On error nothing has changed.
func (t *muxTables) stage(s MuxState) (*change, error) {
	c := &change{t: t}
	if err := c.stage(s); err != nil {
		c.undo()
		return nil, err
	}
	return c, nil
}

func (c *change) stage(s MuxState) error {
	if err := checkState(s); err != nil {
		return err
	}
	if err := checkSources(s); err != nil {
		return err
	}
	wanted := make(map[lb.EndpointKey]bool, len(s.Endpoints))
	for _, e := range s.Endpoints {
		wanted[e.Key] = true
		wanted[vipKey(e.Key)] = true
	}
	for _, e := range s.Endpoints {
		for _, err := range []error{c.vip(vipKey(e.Key)), c.endpoint(e)} {
			if err != nil {
				return fmt.Errorf("endpoint %v: %w", e.Key, err)
			}
		}
	}
	for key, entry := range c.t.entries {
		if !wanted[key] {
			c.remove(key, entry)
		}
	}
	c.rings = slices.Insert(c.rings, 0, func() { c.t.configure(s) })
	return nil
}

// vipKey is the key of the VIP itself.
func vipKey(k lb.EndpointKey) lb.EndpointKey { return lb.EndpointKey{VNI: k.VNI, VIP: k.VIP} }

// vip adds a VIP as such when it is not there.
func (c *change) vip(k lb.EndpointKey) error {
	if _, ok := c.t.entries[k]; ok {
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
		return nil, fmt.Errorf("endpoints: no room: at most %d, VIPs included", len(t.mem.endpoints))
	}
	c.undos = append(c.undos, func() { t.endpoints.free(index) })
	slot, err := t.slots.place(k)
	if err != nil {
		return nil, err
	}
	c.undos = append(c.undos, func() { t.slots.unplace(k, slot) })
	if err := clearCounter(t.maps.EndpointCounts, t.dirtyEndpoints, index); err != nil {
		return nil, err
	}
	t.mem.endpoints[index] = muxEndpoint{Vni: k.VNI, Flags: flags}
	e := &muxEntry{slot: slot, index: index, members: map[uint16]*backendRef{}}
	t.entries[k] = e
	c.undos = append(c.undos, func() { delete(t.entries, k) })
	c.slots = append(c.slots, func() { t.slots.publish(slot, index) })
	return e, nil
}

// endpoint brings one endpoint to its wanted state.
func (c *change) endpoint(w MuxEndpoint) error {
	e, ok := c.t.entries[w.Key]
	if !ok {
		var err error
		if e, err = c.add(w.Key, 0); err != nil {
			return err
		}
	}
	if err := c.stageMembers(e, w.Members); err != nil {
		return err
	}
	return c.stageRing(e, w)
}

// stageRing gives the endpoint a new ring when its present one differs.
func (c *change) stageRing(e *muxEntry, w MuxEndpoint) error {
	t, old := c.t, e.ring
	present := t.mem.rings[old.first : old.first+old.words]
	if e.code == w.RingCode && ringEqual(present, w.Ring) || len(w.Ring) == 0 && old.words == 0 {
		if e.keySlot != w.KeySlot && old.words > 0 {
			c.rings = append(c.rings, func() {
				e.keySlot = w.KeySlot
				store(&t.mem.endpoints[e.index].Ring, ringWord(old, e.code, w.KeySlot))
			})
		}
		return nil
	}
	var next block
	if len(w.Ring) > 0 {
		words := uint32(len(w.Ring) / slotsPerWord)
		var ok bool
		if next, ok = t.rings.alloc(words); !ok {
			return fmt.Errorf("rings: no room for %d slots: %d slots in all", len(w.Ring), len(t.mem.rings)*slotsPerWord)
		}
		c.undos = append(c.undos, func() { t.rings.free(next) })
		packRing(t.mem.rings[next.first:next.first+next.words], w.Ring)
	}
	c.rings = append(c.rings, func() {
		e.ring, e.code, e.keySlot = next, w.RingCode, w.KeySlot
		store(&t.mem.endpoints[e.index].Ring, ringWord(next, w.RingCode, w.KeySlot))
	})
	if old.words > 0 {
		c.released = append(c.released, func() { t.rings.free(old) })
	}
	return nil
}

// remove takes an entry out; what it owned is free after a grace period.
func (c *change) remove(k lb.EndpointKey, e *muxEntry) {
	t := c.t
	c.gone = append(c.gone, func() {
		t.slots.withdraw(k, e.slot)
		delete(t.entries, k)
	})
	c.released = append(c.released, func() {
		t.slots.release(e.slot)
		t.endpoints.free(e.index)
		t.rings.free(e.ring)
		t.members.free(e.block)
	})
	for _, b := range e.members {
		c.dropBackend(b)
	}
}

// configure writes keys and tunnel sources. A key goes into its slot before any ring that uses it is published.
func (t *muxTables) configure(s MuxState) {
	cfg := t.mem.config
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
