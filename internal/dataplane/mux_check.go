package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/shuntlb/shunt/internal/lb"
)

// idSet is a set of member ids.
type idSet []uint64

// newIDSet is an empty set with room for ids below count.
func newIDSet(count int) idSet { return make(idSet, (count+63)/64) }

func (s idSet) has(id uint16) bool { return int(id>>6) < len(s) && s[id>>6]>>(id&63)&1 != 0 }

func (s idSet) add(id uint16) { s[id>>6] |= 1 << (id & 63) }

// idsOf are the ids of members.
func idsOf(members []MuxMember) idSet {
	count := 0
	for _, m := range members {
		count = max(count, int(m.ID)+1)
	}
	ids := newIDSet(count)
	for _, m := range members {
		ids.add(m.ID)
	}
	return ids
}

// checkMembers refuses members and rings that do not fit together.
func checkMembers(e MuxEndpoint) error {
	count := 0
	for _, m := range e.Members {
		count = max(count, int(m.ID)+1)
	}
	ids := newIDSet(count)
	for _, m := range e.Members {
		if ids.has(m.ID) {
			return fmt.Errorf("member %d: given twice", m.ID)
		}
		ids.add(m.ID)
		if !m.Outer.IsValid() {
			return fmt.Errorf("member %d: has no outer destination", m.ID)
		}
	}
	for _, r := range [2][]uint16{e.Ring, e.BackupRing} {
		if len(e.Members) == count && allBelow(r, count) {
			continue // every id below count is a member's
		}
		for slot, id := range r {
			if !ids.has(id) {
				return fmt.Errorf("ring slot %d: member %d is not among the members", slot, id)
			}
		}
	}
	return nil
}

// allBelow says whether all ids in a ring lie below count, four at a time. It may say no though they do.
func allBelow(ring []uint16, count int) bool {
	const high, each = 1 << 15, 0x0001_0001_0001_0001
	if count > high {
		return false
	}
	// An id below high becomes one from high on by the addition when it is count or more, and never reaches its neighbour.
	beyond, add := uint64(0), uint64(high-count)*each
	for _, ids := range wordsOf(ring) {
		beyond |= ids | (ids + add)
	}
	return beyond&(high*each) == 0 && len(ring)%slotsPerWord == 0
}

// checkEndpoints looks at every endpoint alone, on all CPUs: of several faults the first endpoint's is told.
func checkEndpoints(all []MuxEndpoint) error {
	faults := make([]error, len(all))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(all)) {
		workers.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(all); i = next.Add(1) - 1 {
				if err := checkEndpoint(all[i]); err != nil {
					faults[i] = fmt.Errorf("endpoint %v: %w", all[i].Key, err)
				}
			}
		})
	}
	workers.Wait()
	if i := slices.IndexFunc(faults, func(err error) bool { return err != nil }); i >= 0 {
		return faults[i]
	}
	return nil
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

// checkSources refuses members whose tunnel would have no source among these.
func checkSources(endpoints []MuxEndpoint, sources []netip.Prefix) error {
	has := map[bool]bool{}
	for _, p := range sources {
		has[p.Addr().Is4()] = true
	}
	for _, e := range endpoints {
		if e.NAT {
			continue // there is no tunnel
		}
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
	for _, err := range []error{checkPorts(e.Key), checkIdentity(e), checkQUIC(e), checkCookie(e), checkNAT(e)} {
		if err != nil {
			return err
		}
	}
	if err := checkMembers(e); err != nil {
		return err
	}
	if e.NAT {
		return nil // members may share an address
	}
	return checkOuters(e)
}
