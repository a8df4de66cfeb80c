package packet

import (
	"fmt"
	"net/netip"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// core is the prober without goroutine, lock and clock. The caller passes the time in and takes the
// answers out.
type core struct {
	tables  dataplane.ProbeTables
	sender  Sender
	random  func() uint64
	window  int
	devices []int
	local   func(is4 bool) netip.Addr

	rules   []rule // by number
	checks  checks
	places  *places
	tunnels map[uint32]tunnelRule // those with a tunnel
	faults  map[uint32]error      // reasons of those that cannot be probed
	sources []netip.Prefix
	told    netdev.Ways
	ways    []way // those of told, from 1 up
	moved   bool  // the destinations differ from those reported to Want
	// doubts counts servers that fell silent, each for as long as other probers probe it, because
	// all those lost together would fill the other probers. unreached counts next hops.
	doubts, unreached doubts
	busy              busy

	queue  fifo    // to be sent: first SYNs and retries
	resets []reset // connections to be reset
	young  []flight
	wheel  wheel
	bursts bursts
	// answers are the answers to be reported.
	answers []probe.Answer

	frames  [batch]Frame
	sending [batch]entry
	buffers [batch][frameMax]byte
}

func newCore(o Options) core {
	return core{
		tables: o.Tables, sender: o.Sender, random: o.Random, window: o.Window, devices: o.Devices, local: o.Local,
		checks: checks{known: map[unique.Handle[lb.Check]]uint32{}}, places: newPlaces(), ways: make([]way, 1),
		tunnels: map[uint32]tunnelRule{}, faults: map[uint32]error{},
	}
}

// frameMax is the length of the longest frame: two IPv6 headers, one of them with GUE, a tag and a
// TCP header.
const frameMax = 160

// add registers a target.
func (c *core) add(id uint32, t probe.Target) error {
	if id >= c.tables.Size() {
		return fmt.Errorf("probe %s: number %d: %w: at most %d by packets (--max-probes)", t.Address, id, probe.ErrCrowded, c.tables.Size())
	}
	if err := check(t); err != nil {
		return fmt.Errorf("probe %s: %w", t.Address, err)
	}
	c.rules = roomFor(c.rules, int(id)+1)
	r := &c.rules[id]
	if r.known {
		return fmt.Errorf("probe %s: number %d is that of %s", t.Address, id, c.target(id).Address)
	}
	to := destination(t)
	place, first := c.places.hold(to)
	*r = rule{
		terms: c.checks.hold(t.Check), place: place, port: t.Address.Port(), tunnel: tunnelled(t), gen: r.gen + 1, round: r.round, known: true,
	}
	if r.tunnel {
		c.tunnels[id] = tunnelRule{target: t}
	}
	if first {
		c.moved = true
		// The destination may have been wanted a moment ago. Then its way is in told, and is not
		// reported again.
		if which, told := c.told.Which(to); told {
			c.places.list[place].way = uint32(which) + 1
		}
	}
	if c.places.list[place].way != 0 {
		c.place(id)
	}
	return nil
}

// target returns the target with a number.
func (c *core) target(id uint32) probe.Target {
	r := &c.rules[id]
	if r.tunnel {
		return c.tunnels[id].target
	}
	return probe.Target{Check: c.checks.list[r.terms].check, Address: netip.AddrPortFrom(c.places.list[r.place].address(), r.port)}
}

func (c *core) timeout(r *rule) time.Duration { return c.checks.list[r.terms].timeout }

// way returns the way of a target, the zero one if it is unknown.
func (c *core) way(r *rule) *way { return &c.ways[c.places.list[r.place].way] }

// remove drops a target. Its pending probe is Void.
func (c *core) remove(id uint32) {
	if int(id) >= len(c.rules) || !c.rules[id].known {
		return
	}
	r := &c.rules[id]
	if r.stage != idle {
		c.finish(id, 0, probe.Void, "not probed any more")
	}
	c.tables.Remove(id)
	if c.places.release(r.place) {
		c.moved = true
	}
	c.checks.release(r.terms)
	delete(c.tunnels, id)
	delete(c.faults, id)
	*r = rule{gen: r.gen + 1, round: r.round}
}

// ask begins probes.
func (c *core) ask(ids []uint32, now int64) {
	for _, id := range ids {
		if int(id) >= len(c.rules) || !c.rules[id].known {
			c.answers = append(c.answers, probe.Answer{ID: id, Verdict: probe.Void, Words: "not probed any more"})
			continue
		}
		r := &c.rules[id]
		if r.stage != idle {
			panic(fmt.Sprintf("probe %d of %s is asked while it is under way", id, c.target(id).Address))
		}
		r.began, r.sent = now, 0
		switch {
		case r.placed:
			r.stage = queued
			c.queue.push(entry{id, r.gen})
		case r.faulty:
			r.stage = parked
			c.noWay(id, now)
		default:
			r.stage = parked
			c.wheel.add(entry{id, r.gen}, now+int64(c.timeout(r)/2))
		}
	}
}

// finish queues the answer of a probe.
func (c *core) finish(id uint32, now int64, v probe.Verdict, words string) {
	r := &c.rules[id]
	c.answers = append(c.answers, probe.Answer{ID: id, Verdict: v, Words: words, Took: time.Duration(max(now-r.began, 0))})
	r.stage = idle
	r.gen++
}

// step does all work that is due at now. It returns how long there is none; below 0: until the next
// call of another method.
func (c *core) step(now int64) time.Duration {
	c.lookYoung(now)
	c.wheel.due(now, func(e entry) { c.lookOld(e, now) })
	c.collectBursts(now)
	began := c.beginBurst(now)
	if began && c.bursts.quick {
		c.collectBursts(now) // a quick burst is finished when Start returns
	}
	most := batch
	bursting := c.bursts.active != nil
	if began || bursting {
		most = aside
	}
	busy := c.send(now, most)
	if c.queue.len() == 0 {
		// Near servers have answered already. Then no wakeup for them is needed.
		c.lookYoung(now)
	}
	switch {
	case busy, bursting:
		return tick
	case (c.queue.len() > 0 || len(c.resets) > 0) && len(c.young) < c.window:
		return 0
	case c.queue.len() > 0:
		return pause
	case len(c.young) > 0, c.bursts.trial != nil:
		return tick
	}
	if at, ok := c.wheel.next(); ok {
		return max(time.Duration(at-now), millisecond)
	}
	return -1
}
