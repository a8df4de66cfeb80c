package dataplane

import (
	"fmt"
	"iter"
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// guardTable keeps what VIPs let through (struct vip_guard). VIPs without limits and lists have no record.
type guardTable struct {
	records []muxVipGuard
	hz      uint64 // jiffies a second
	indices *pool
	sources sourceTable
	byVIP   map[lb.EndpointKey]*guardRef
}

// guardRef is the guard of a VIP.
type guardRef struct {
	index uint32
	list  *sourceRef // nil: every source
}

func newGuardTable(mem *muxMemory, hz uint64) guardTable {
	return guardTable{
		records: mem.guards, hz: hz, indices: newPool(uint32(len(mem.guards))), sources: newSourceTable(mem),
		byVIP: make(map[lb.EndpointKey]*guardRef),
	}
}

// limitWindow is the time of a full bucket in 2^-24 jiffies: a tenth of a second.
func limitWindow(hz uint64) uint64 { return hz << 24 / 10 }

// limitInterval is the time of one token in 2^-24 jiffies; 0 is no limit.
func limitInterval(rate, hz uint64) uint64 {
	if rate == 0 {
		return 0
	}
	return max(1, hz<<24/rate)
}

// rate is the roundest rate whose limit has this interval, since that is what was asked for.
func (t *guardTable) rate(interval uint64) uint64 {
	if interval == 0 {
		return 0
	}
	exact := (t.hz<<24 + interval/2) / interval
	for unit := uint64(lb.MaxRate); unit > 1; unit /= 10 {
		if round := (exact + unit/2) / unit * unit; round > 0 && limitInterval(round, t.hz) == interval {
			return round
		}
	}
	return exact
}

// guards says whether the VIP's packets must pass a guard.
func (v MuxVIP) guards() bool {
	return v.Limits.Packets != 0 || v.Limits.Connections != 0 || v.Sources != nil
}

// key is the key of the VIP itself.
func (v MuxVIP) key() lb.EndpointKey { return lb.EndpointKey{VNI: v.VNI, VIP: v.VIP} }

// checkVIPs refuses what could not be right about VIPs.
func checkVIPs(vips []MuxVIP) error {
	seen := make(map[lb.EndpointKey]bool, len(vips))
	for _, v := range vips {
		if seen[v.key()] {
			return fmt.Errorf("VIP %s: given twice", v.VIP)
		}
		seen[v.key()] = true
		switch {
		case !v.Outbound:
		case !v.VIP.IsValid() || v.VIP.Is4In6():
			return fmt.Errorf("VIP %v: must be an IPv4 or IPv6 address", v.VIP)
		case v.VNI != 0:
			return fmt.Errorf("VIP %s: VNI %d: not supported by this version", v.VIP, v.VNI)
		}
		if v.Sources == nil {
			continue
		}
		for _, prefixes := range [][]netip.Prefix{v.Sources.Allow, v.Sources.Deny} {
			for _, p := range prefixes {
				if !p.IsValid() || p.Addr().Is4In6() {
					return fmt.Errorf("VIP %s: source prefix %v: must be a prefix of IPv4 or IPv6 addresses", v.VIP, p)
				}
			}
		}
	}
	return nil
}

// stageGuards brings the guards of the VIPs to their wanted state; served are the VIPs that have endpoints, and of those in
// scope none that is not among vips keeps a guard.
func (c *change) stageGuards(vips []MuxVIP, served map[lb.EndpointKey]bool, scope iter.Seq[lb.EndpointKey]) error {
	t := &c.t.guards
	c.guardOf = make(map[lb.EndpointKey]uint32, len(vips))
	for _, v := range vips {
		if !v.guards() || !served[v.key()] {
			continue
		}
		var err error
		if c.guardOf[v.key()], err = c.stageGuard(v); err != nil {
			return fmt.Errorf("VIP %s: %w", v.VIP, ofVIP(err, v.key()))
		}
	}
	for key := range scope {
		g, have := t.byVIP[key]
		if _, wanted := c.guardOf[key]; wanted || !have {
			continue
		}
		c.gone = append(c.gone, func() { delete(t.byVIP, key) })
		c.released = append(c.released, func() {
			if g.list != nil {
				t.sources.release(g.list)
			}
			t.indices.free(g.index)
		})
	}
	return nil
}

// stageGuard brings one guard to its wanted state. Its index + 1 is what slots of the VIP name.
func (c *change) stageGuard(v MuxVIP) (uint32, error) {
	t := &c.t.guards
	g, ok := t.byVIP[v.key()]
	if !ok {
		index, free := t.indices.alloc()
		if !free {
			return 0, noRoom(TableEndpoints, "limits and source lists: no room: at most %d VIPs may have them (--max-endpoints)", len(t.records))
		}
		c.undos = append(c.undos, func() { t.indices.free(index) })
		g = &guardRef{index: index}
		t.records[index] = muxVipGuard{}
		t.byVIP[v.key()] = g
		c.undos = append(c.undos, func() { delete(t.byVIP, v.key()) })
	}
	record := &t.records[g.index]
	c.guards = append(c.guards, func() {
		store(&record.PacketsInterval, limitInterval(v.Limits.Packets, t.hz))
		store(&record.FlowsInterval, limitInterval(v.Limits.Connections, t.hz))
	})
	return g.index + 1, c.stageSources(g, v.Sources)
}

// stageSources gives a guard another source list, or none.
func (c *change) stageSources(g *guardRef, wanted *SourceList) error {
	t, old := &c.t.guards, g.list
	if old == nil && wanted == nil || old != nil && wanted != nil && old.digest == wanted.Digest {
		return nil
	}
	var next *sourceRef
	word := uint64(0)
	if wanted != nil {
		var err error
		if next, err = t.sources.acquire(wanted); err != nil {
			return err
		}
		c.undos = append(c.undos, func() { t.sources.release(next) })
		word = uint64(next.index) + 1
	}
	c.guards = append(c.guards, func() {
		g.list = next
		store(&t.records[g.index].Sources, word)
	})
	if old != nil {
		c.released = append(c.released, func() { t.sources.release(old) })
	}
	return nil
}

// adopt learns the guard of a VIP, by index, from the tables. Several slots may name it.
func (t *guardTable) adopt(vip lb.EndpointKey, index uint32) error {
	if g, ok := t.byVIP[vip]; ok {
		if g.index != index {
			return fmt.Errorf("guards %d and %d", g.index, index)
		}
		return nil
	}
	if !t.indices.reserve(index) {
		return fmt.Errorf("guard %d: beyond the table or in use twice", index)
	}
	g := &guardRef{index: index}
	t.byVIP[vip] = g
	if word := t.records[index].Sources; word != 0 {
		var err error
		if g.list, err = t.sources.adopt(uint32(word - 1)); err != nil {
			return err
		}
	}
	return nil
}
