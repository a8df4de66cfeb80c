package packet

import (
	"hash/maphash"
	"math"
	"net/netip"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/index"
)

// place is a destination of targets' frames, without a zone. Its number is reused.
type place struct {
	bytes [16]byte
	way   uint32 // in core.ways, 0: unknown
	rules uint32 // number of targets to it, 0: the number is free
	is4   bool
}

// address returns the address of a place.
func (p *place) address() netip.Addr {
	a := netip.AddrFrom16(p.bytes)
	if p.is4 {
		a = a.Unmap()
	}
	return a
}

// places holds the destinations.
type places struct {
	list   []place
	unused []uint32
	find   index.Index
	seed   maphash.Seed
}

func newPlaces() *places {
	p := &places{seed: maphash.MakeSeed()}
	p.find.Hash = func(n uint32) uint64 { return maphash.Comparable(p.seed, p.list[n].address()) }
	return p
}

// number returns the number of an address; false: no target has it.
func (p *places) number(a netip.Addr) (uint32, bool) {
	return p.find.Find(maphash.Comparable(p.seed, a), func(n uint32) bool { return p.list[n].address() == a })
}

// hold counts one more target for an address. first: it is the only one.
func (p *places) hold(a netip.Addr) (n uint32, first bool) {
	if n, ok := p.number(a); ok {
		p.list[n].rules++
		return n, false
	}
	if free := len(p.unused); free > 0 {
		n, p.unused = p.unused[free-1], p.unused[:free-1]
	} else {
		n, p.list = uint32(len(p.list)), roomFor(p.list, len(p.list)+1)
	}
	p.list[n] = place{bytes: a.As16(), is4: a.Is4(), rules: 1}
	p.find.Add(n)
	return n, true
}

// roomFor extends a list to n, with little spare room, because there may be many targets.
func roomFor[T any](list []T, n int) []T {
	if n > cap(list) {
		list = append(make([]T, 0, max(n, cap(list)+cap(list)/16)), list...)
	}
	return list[:max(n, len(list))]
}

// release undoes a hold, and reports whether it was the last.
func (p *places) release(n uint32) bool {
	if p.list[n].rules--; p.list[n].rules > 0 {
		return false
	}
	p.find.Remove(n)
	p.list[n] = place{}
	p.unused = append(p.unused, n)
	return true
}

// addresses returns all destinations.
func (p *places) addresses() []netip.Addr {
	out := make([]netip.Addr, 0, p.find.Len())
	for i := range p.list {
		if x := &p.list[i]; x.rules > 0 {
			out = append(out, x.address())
		}
	}
	return out
}

// way is the way to some destinations.
type way struct {
	netdev.NextHop
	// since is the time, in nanoseconds, since which the next hop is unresolved.
	since int64
}

// terms are the values common to all targets with a check.
type terms struct {
	check   unique.Handle[lb.Check]
	timeout time.Duration
	good    lb.StatusSet
	rules   int
}

// checks holds the terms by number. A number is reused when no target has it.
type checks struct {
	list   []terms
	unused []uint32
	known  map[unique.Handle[lb.Check]]uint32
}

func (c *checks) hold(h unique.Handle[lb.Check]) uint32 {
	n, ok := c.known[h]
	if !ok {
		if free := len(c.unused); free > 0 {
			n, c.unused = c.unused[free-1], c.unused[:free-1]
		} else {
			n, c.list = uint32(len(c.list)), append(c.list, terms{})
		}
		check := h.Value()
		c.list[n], c.known[h] = terms{check: h, timeout: check.Timeout, good: check.Status}, n
	}
	c.list[n].rules++
	return n
}

// least returns the shortest timeout.
func (c *checks) least() time.Duration {
	d := time.Duration(math.MaxInt64)
	for i := range c.list {
		if c.list[i].rules > 0 {
			d = min(d, c.list[i].timeout)
		}
	}
	return d
}

func (c *checks) release(n uint32) {
	if c.list[n].rules--; c.list[n].rules == 0 {
		delete(c.known, c.list[n].check)
		c.list[n] = terms{}
		c.unused = append(c.unused, n)
	}
}

// tunnelRule holds the additional values of a target with a tunnel.
type tunnelRule struct {
	target probe.Target
	frame  []byte // template of its SYN
}

// doubts bounds how many silent servers that answered before are handed to other probers at a time.
// More than that are a failure so large that no second opinion is needed.
type doubts struct{ until []int64 }

// maxDoubts is the bound of doubts.
const maxDoubts = 256

// one adds an entry that lasts until a time; false: there are maxDoubts already.
func (d *doubts) one(now, until int64) bool {
	keep := d.until[:0]
	for _, t := range d.until {
		if t > now {
			keep = append(keep, t)
		}
	}
	d.until = keep
	if len(keep) >= maxDoubts {
		return false
	}
	d.until = append(keep, until)
	return true
}
