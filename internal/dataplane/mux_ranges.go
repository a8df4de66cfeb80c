package dataplane

import (
	"fmt"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// portSpan is where the intervals of a VIP's ports are, which slot takes any protocol, and who has ports that no endpoint takes.
type portSpan struct {
	block block
	count int
	any   uint32 // index of the slot + 1, 0 none
	snat  uint32 // index of the snat_block + 1, 0 none
}

// checkPorts refuses ports that no endpoint can have.
func checkPorts(k lb.EndpointKey) error {
	all := k.Port == 0 && k.PortEnd == maxPort
	switch {
	case k.Protocol == lb.AnyProtocol && !all:
		return fmt.Errorf("ports %d-%d: an endpoint for any protocol must have all ports", k.Port, k.PortEnd)
	case k.PortEnd != 0 && !all && (k.Port == 0 || k.PortEnd <= k.Port):
		return fmt.Errorf("ports %d-%d: a range must begin at 1 or later and end behind its first port", k.Port, k.PortEnd)
	}
	return nil
}

// rangesOf are the ranges of every VIP, slots to be filled in.
func rangesOf(endpoints []MuxEndpoint, slot func(lb.EndpointKey) uint32) map[lb.EndpointKey][]portRange {
	ranges := make(map[lb.EndpointKey][]portRange)
	for _, e := range endpoints {
		if k := e.Key; k.PortEnd != 0 && k.Protocol != lb.AnyProtocol {
			ranges[vipKey(k)] = append(ranges[vipKey(k)], portRange{k.Protocol, k.Port, k.PortEnd, slot(k)})
		}
	}
	return ranges
}

// checkRanges refuses ranges that overlap.
func checkRanges(endpoints []MuxEndpoint) error {
	ranges := rangesOf(endpoints, func(lb.EndpointKey) uint32 { return 0 })
	for i, e := range endpoints {
		vip := vipKey(e.Key)
		if i > 0 && vip == vipKey(endpoints[i-1].Key) {
			continue
		}
		if _, err := portIntervals(ranges[vip]); err != nil {
			return fmt.Errorf("VIP %s: %w", vip.VIP, err)
		}
	}
	return nil
}

// stageRanges brings the intervals of the staged VIPs to their wanted state: the slots of the endpoints, which are all of these
// VIPs', are known. New intervals are written beside the old ones and published by one store.
func (c *change) stageRanges(endpoints []MuxEndpoint) error {
	t := c.t
	ranges := rangesOf(endpoints, func(k lb.EndpointKey) uint32 { return t.entries[k].slot })
	takesAny := make(map[lb.EndpointKey]uint32)
	for _, e := range endpoints {
		if e.Key.Protocol == lb.AnyProtocol {
			takesAny[vipKey(e.Key)] = t.entries[e.Key].slot + 1
		}
	}
	for _, vip := range c.vips {
		e, slot := t.entries[vip], takesAny[vip]
		words, err := portIntervals(ranges[vip])
		if err != nil {
			return fmt.Errorf("VIP %s: %w", vip.VIP, err)
		}
		// What is new before what is gone (find_wildcard of bpf/mux/wildcard.h).
		if slot != 0 {
			c.stageAny(e, slot)
		}
		if err := c.stageIntervals(e, words); err != nil {
			return fmt.Errorf("VIP %s: %w", vip.VIP, ofVIP(err, vip))
		}
		if slot == 0 {
			c.stageAny(e, slot)
		}
	}
	return nil
}

// stageIntervals gives a VIP these intervals when its present ones differ.
func (c *change) stageIntervals(vip *muxEntry, words []uint64) error {
	t, old := c.t, vip.ranges.block
	if slices.Equal(t.mem.portRanges[old.first:int(old.first)+vip.ranges.count], words) {
		return nil
	}
	var next block
	if len(words) > 0 {
		var ok bool
		if next, ok = t.ports.alloc(uint32(len(words))); !ok {
			return noRoom(TableRanges, "port ranges: no room for %d intervals: %d in all (--max-endpoints)", len(words), len(t.mem.portRanges))
		}
		c.undos = append(c.undos, func() { t.ports.free(next) })
		copy(t.mem.portRanges[next.first:], words)
	}
	c.ranges = append(c.ranges, func() {
		vip.ranges.block, vip.ranges.count = next, len(words)
		store(&t.mem.slots[vip.slot].Ring, spanWord(next.first, len(words)))
	})
	if old.words > 0 {
		c.released = append(c.released, func() { t.ports.free(old) })
	}
	return nil
}

// stageAny gives a VIP another endpoint for any protocol: the index of its slot + 1, or 0.
func (c *change) stageAny(vip *muxEntry, slot uint32) {
	if vip.ranges.any != slot {
		c.ranges = append(c.ranges, func() {
			vip.ranges.any = slot
			store(&c.t.mem.slots[vip.slot].Members, vip.vipMembers())
		})
	}
}

// adoptRanges learns the intervals of a VIP.
func (t *muxTables) adoptRanges(vip *muxEntry, record *muxEndpointSlot) error {
	vip.ranges = portSpan{count: spanCount(record.Ring), any: uint32(record.Members)}
	if vip.ranges.count == 0 {
		return nil
	}
	var ok bool
	if vip.ranges.block, ok = t.ports.reserve(uint32(record.Ring), uint32(vip.ranges.count)); !ok {
		return fmt.Errorf("port ranges word %#x: words in use twice", record.Ring)
	}
	return nil
}
