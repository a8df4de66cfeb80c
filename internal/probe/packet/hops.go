package packet

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// place writes the record of a target if its way is known.
func (c *core) place(id uint32) {
	r, target := &c.rules[id], c.target(id)
	delete(c.faults, id)
	r.faulty = false
	err := errUnresolved
	if c.places.list[r.place].way != 0 {
		var rec dataplane.ProbeRule
		var frame []byte
		rec, frame, err = record(target, surroundings{c.way(r).NextHop, c.sources, c.devices, c.local})
		if err == nil {
			err = c.tables.Put(id, rec)
		}
		if err == nil {
			r.placed, r.request = true, uint16(len(rec.Request))
			if r.tunnel {
				c.tunnels[id] = tunnelRule{target, frame}
			}
			return
		}
	}
	c.tables.Remove(id)
	r.placed = false
	// An unresolved next hop may be resolved at any moment.
	if !errors.Is(err, errUnresolved) {
		r.faulty, c.faults[id] = true, err
	}
}

// replace writes the record of a target again. A running probe continues with it.
func (c *core) replace(id uint32, now int64) {
	r := &c.rules[id]
	c.place(id)
	switch {
	case r.stage == flying && r.placed:
		c.tables.Begin(id, r.round.isn, r.round.port)
	case r.stage == parked && r.placed:
		r.stage = queued
		r.gen++ // invalidates its entry in the wheel
		c.queue.push(entry{id, r.gen})
	case r.stage != idle && r.faulty:
		c.noWay(id, now)
	case r.stage != idle && !r.placed && r.stage != parked:
		r.stage = parked
		r.gen++
		c.wheel.add(entry{id, r.gen}, now)
	}
}

// resolving is how long a next hop may be unresolved before other probers probe the target. The
// kernel gives up after about three seconds.
const resolving = 3 * time.Second

// noWay queues the answer for a target without a way. It is Void while a way may still appear;
// otherwise Unsure, because another prober may find one. The way through a tunnel is that of the
// packets of clients. If they cannot be sent either, the server does not serve, and the verdict is
// Bad.
func (c *core) noWay(id uint32, now int64) {
	r, fault := &c.rules[id], c.faults[id]
	v, words, late := probe.Void, "no way to the server is known yet", false
	if c.places.list[r.place].way != 0 {
		late = now-c.way(r).since >= int64(resolving)
	}
	switch {
	case r.faulty && r.tunnel && errors.Is(fault, errNoRoute):
		if words = fault.Error(); late {
			v = probe.Bad
		}
	case r.faulty:
		if words = fault.Error(); !errors.As(fault, new(noTunnel)) {
			v = probe.Unsure
		}
	case c.places.list[r.place].way != 0:
		words = errUnresolved.Error()
		switch {
		case late && r.tunnel:
			v = probe.Bad
		case late && c.unreached.one(now, now+int64(c.timeout(r))):
			v = probe.Unsure
		}
	}
	crowded := r.faulty && errors.Is(fault, dataplane.ErrProbeRoom)
	c.finish(id, now, v, words)
	answer := &c.answers[len(c.answers)-1]
	answer.Crowded, answer.Silent = crowded, v == probe.Bad
}

// hops sets the ways to destinations, as reported by netdev.NextHops.
func (c *core) hops(told netdev.Ways, now int64) {
	since := map[netdev.NextHop]int64{}
	for _, w := range c.ways {
		if !w.Resolved {
			since[w.NextHop] = w.since
		}
	}
	ways := make([]way, 1, 1+len(told.Hops()))
	for _, hop := range told.Hops() {
		w := way{NextHop: hop, since: now}
		if before, ok := since[hop]; ok {
			w.since = before
		}
		ways = append(ways, w)
	}
	to := make([]uint32, len(c.places.list))
	for address, which := range told.Each() {
		if n, wanted := c.places.number(address); wanted {
			to[n] = uint32(which) + 1
		}
	}
	changed, some := make([]bool, len(to)), false
	elsewhere := map[uint32]bool{} // places whose answers may now arrive on another interface
	for n := range to {
		p := &c.places.list[n]
		before, after := c.ways[p.way].NextHop, ways[to[n]].NextHop
		changed[n] = (p.way == 0) != (to[n] == 0) || !sameWay(before, after)
		some = some || changed[n]
		if before.Ifindex != 0 && before.Ifindex != after.Ifindex {
			elsewhere[uint32(n)] = true
		}
		p.way = to[n]
	}
	c.told, c.ways = told, ways
	if !some {
		return
	}
	for id := range c.rules {
		r := &c.rules[id]
		if !r.known || !changed[r.place] {
			continue
		}
		if elsewhere[r.place] {
			r.heard, r.doubted = false, false
		}
		c.replace(uint32(id), now)
	}
}

// sameWay compares all fields that frames depend on.
func sameWay(a, b netdev.NextHop) bool {
	a.MTU, b.MTU = 0, 0
	return a == b
}

// tunnelSources sets the sources of the outer headers.
func (c *core) tunnelSources(sources []netip.Prefix, now int64) {
	if slices.Equal(sources, c.sources) {
		return
	}
	c.sources = slices.Clone(sources)
	for id := range c.rules {
		if r := &c.rules[id]; r.known && r.tunnel && c.places.list[r.place].way != 0 {
			c.replace(uint32(id), now)
		}
	}
}
