package dataplane

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/shuntlb/shunt/internal/lb"
)

// change is a step from what the tables hold to what they should: everything in it has been written to places that no
// reader sees yet. Exactly one of publish and undo is called; after publish and a grace period, release.
type change struct {
	t *muxTables
	// crowded: what changes before this one gave up is not free yet.
	crowded bool
	// first: it is released before another change is staged, which would meet members that are half gone.
	first bool
	undos []func()
	// Published in this order: what is named before what names it, then what is taken away.
	guards, members, rings, slots, ranges, gone []func()
	released                                    []func()
	vips                                        []lb.EndpointKey          // staged, each once, in the order of the endpoints
	staged                                      map[lb.EndpointKey]bool   // the same VIPs
	leaving                                     []*muxEntry               // are removed
	moves                                       bool                      // VIPs may come or go
	quics                                       int                       // how many more endpoints have a quic_set
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

// release frees what was given up; changes are released in their order.
func (c *change) release() {
	for _, f := range c.released {
		f()
	}
}

// stage writes the wanted state beside the present one. crowded tells that waiting will make room. On error nothing has changed.
func (t *muxTables) stage(s MuxState, crowded bool) (*change, error) {
	c := &change{t: t, crowded: crowded, staged: map[lb.EndpointKey]bool{}, moved: map[*muxEntry]bool{}}
	if err := c.stage(s); err != nil {
		c.undo()
		return nil, err
	}
	return c, nil
}

func (c *change) stage(s MuxState) error {
	c.moves = true
	wanted, err := wantedKeys(s.Endpoints, s.VIPs)
	if err != nil {
		return err
	}
	if err := checkState(s); err != nil {
		return err
	}
	if err := checkSources(s.Endpoints, s.TunnelSources); err != nil {
		return err
	}
	if err := c.stageGuards(s.VIPs, wanted, maps.Keys(c.t.guards.byVIP)); err != nil {
		return err
	}
	if err := c.stageEndpoints(s.Endpoints, s.VIPs); err != nil {
		return err
	}
	for key, entry := range c.t.entries {
		if !wanted[key] {
			c.remove(key, entry)
		}
	}
	if err := c.countQUIC(); err != nil {
		return err
	}
	c.rings = slices.Insert(c.rings, 0, func() {
		c.t.configure(s)
		c.countIdle(s.Endpoints)
	})
	return nil
}

// stageEndpoints brings endpoints, all of their VIPs, and these VIPs to their wanted state; the guards are staged.
func (c *change) stageEndpoints(endpoints []MuxEndpoint, vips []MuxVIP) error {
	for i, e := range endpoints {
		var err error
		if i == 0 || vipKey(e.Key) != vipKey(endpoints[i-1].Key) {
			err = c.vip(vipKey(e.Key))
		}
		if err == nil {
			err = c.endpoint(e)
		}
		if err != nil {
			return fmt.Errorf("endpoint %v: %w", e.Key, ofVIP(err, e.Key))
		}
	}
	for _, v := range vips {
		if !v.Outbound {
			continue
		}
		if err := c.vip(v.key()); err != nil {
			return fmt.Errorf("VIP %v: %w", v.VIP, err)
		}
	}
	if err := c.stageRanges(endpoints); err != nil {
		return err
	}
	if err := c.stageVIPs(endpoints, vips); err != nil {
		return err
	}
	c.listEndpoints(endpoints)
	return nil
}

// wantedKeys are the keys of endpoints, of their VIPs, and of those VIPs that are there without endpoints. Endpoints of a VIP come one after
// the other as a rule.
func wantedKeys(endpoints []MuxEndpoint, vips []MuxVIP) (map[lb.EndpointKey]bool, error) {
	wanted := make(map[lb.EndpointKey]bool, 2*len(endpoints))
	for _, v := range vips {
		if v.Outbound {
			wanted[v.key()] = true
		}
	}
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
	c.moves = true
	e, err := c.add(k, uint32(muxEndpointFlagENDPOINT_VIP_ONLY))
	if err != nil {
		return err
	}
	c.t.nameSNAT(e, k)
	c.t.mem.slots[e.slot].Members = e.vipMembers()
	return nil
}

// add makes an entry with an empty record; its slot is published last.
func (c *change) add(k lb.EndpointKey, flags uint32) (*muxEntry, error) {
	t := c.t
	index, ok := t.endpoints.alloc()
	if !ok {
		return nil, noRoom(TableEndpoints, "endpoints: no room: at most %d, VIPs included (--max-endpoints)", t.mem.endpointCounts.size)
	}
	c.undos = append(c.undos, func() { t.endpoints.free(index) })
	slot, err := t.slots.place(k)
	if err != nil {
		return nil, err
	}
	c.undos = append(c.undos, func() { t.slots.unplace(k, slot) })
	t.mem.endpointCounts.clear(index)
	t.mem.pings[index], t.mem.tooBigs[index], t.mem.fragmentRates[index] = 0, 0, 0
	e := &muxEntry{slot: slot, index: index, policy: uint64(flags) << muxPolicyShiftPOLICY_FLAGS_SHIFT}
	t.mem.slots[slot].Policy = e.policy
	t.entries[k] = e
	c.undos = append(c.undos, func() { delete(t.entries, k) })
	c.slots = append(c.slots, func() { t.slots.publish(slot, index) })
	return e, nil
}

// endpoint brings one endpoint to its wanted state.
func (c *change) endpoint(w MuxEndpoint) error {
	if w.NAT && c.t.mem.natRoom == 0 {
		return errNoNATRoom()
	}
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
		if err := c.stageMembers(e, w.Members, w.carrier()); err != nil {
			return err
		}
	}
	return c.stageRings(e, w)
}

// remove takes an entry out; what it owned is free after a grace period.
func (c *change) remove(k lb.EndpointKey, e *muxEntry) {
	t := c.t
	c.leaving = append(c.leaving, e)
	c.moves = c.moves || k == vipKey(k)
	c.quics -= known(e.quic)
	c.gone = append(c.gone, func() {
		t.slots.withdraw(k, e.slot)
		delete(t.entries, k)
		e.ripe = false // a sweep that goes on must not end the move
		t.own(e.block, nil)
		t.own(e.moved, nil)
	})
	c.released = append(c.released, func() {
		t.slots.release(e.slot)
		if e.flags()&muxEndpointFlagENDPOINT_TRACK != 0 {
			t.connections.dropEndpoint(e.index)
		}
		t.endpoints.free(e.index)
		t.rings.free(e.rings[0].block)
		t.rings.free(e.rings[1].block)
		t.rings.free(e.sequence.block)
		t.limbo = append(t.limbo, e.block, e.moved)
		t.ports.free(e.ranges.block)
		t.freeExtra(e.extra)
		t.quic.release(e.quic)
		if e.cookies != nil {
			t.cookies.release(e.cookies)
		}
	})
	for _, b := range e.members.all() {
		c.dropBackend(b)
	}
}

// configure writes keys and tunnel sources. A key goes into its slot before any ring that uses it is published.
func (t *muxTables) configure(s MuxState) {
	cfg := t.mem.config
	t.whole, t.sources = true, s.TunnelSources
	cfg.AbiVersion = uint32(muxLimitLIMIT_ABI_VERSION)
	t.tune()
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

// tune sets the clock that cookies of form CO are read with by this machine's.
func (t *muxTables) tune() { atomic.StoreUint64(&t.mem.config.Ahead, uint64(clockAhead())) }

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
