package probe

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/probe/index"
	"github.com/shuntlb/shunt/internal/probe/wheel"
)

// state is where a rule is between two probes.
type state uint8

const (
	free    state = iota
	waiting       // in the wheel
	queued        // due
	out           // asked, the answer has not come
	unsure        // the answer was Unsure: another means has to ask
)

// rule is a target with its place in the schedule. Its index in the table is the number that askers know it by. Times are since the
// engine was made. It has no pointers: there are many rules.
type rule struct {
	// plan is when the next probe is to begin, or the one that is out was; handed when an asker got it.
	plan, handed time.Duration
	// address, port and is4 are its target's, of which table.odd has all that is odd.
	address [16]byte
	pace    uint32 // in table.paces, 0: the number is free
	// sockets is the second until which packets are not tried; 0: they may be.
	sockets uint32
	run     run
	port    uint16
	is4     bool
	odd     bool
	state   state
	means   int8 // who asks; nobody
	// gone: nobody wants it any more; the number is free once the state comes round. fresh: it was not asked yet.
	gone, fresh bool
}

// maxSpare is for how many numbers an empty queue keeps its memory.
const maxSpare = 4096

// queue is numbers in the order they came.
type queue struct {
	ids  []uint32
	head int
}

func (q *queue) len() int { return len(q.ids) - q.head }

func (q *queue) push(id uint32) { q.ids = append(q.ids, id) }

func (q *queue) pop() uint32 {
	id := q.ids[q.head]
	if q.head++; q.head == len(q.ids) {
		if q.ids, q.head = q.ids[:0], 0; cap(q.ids) > maxSpare {
			q.ids = nil
		}
	} else if q.head >= 1024 && q.head*2 >= len(q.ids) {
		q.ids, q.head = q.ids[:copy(q.ids, q.ids[q.head:])], 0
	}
	return id
}

// table is the rules and where each is. It has no lock, no clock, and knows no asker.
type table struct {
	rules    []rule
	unused   []uint32
	byTarget index.Index // of those that are wanted
	seed     maphash.Seed
	// expected is how many rules there will be at least; salt makes neighbours' plans this engine's own.
	expected int
	salt     uint64
	paces    paces
	// odd are the targets of rules that are more than a check and an address: through tunnels, or in a zone.
	odd map[uint32]Target
	// wheel has those that wait, in ticks. due and first are those that are to be asked: planned ones, and those that never were,
	// which come after.
	wheel      *wheel.Wheel
	due, first queue
	crowd      crowd
}

func newTable() *table {
	t := &table{seed: maphash.MakeSeed(), paces: newPaces(), odd: map[uint32]Target{}, wheel: wheel.New(0)}
	t.byTarget.Hash = func(id uint32) uint64 { return maphash.Comparable(t.seed, t.target(id)) }
	return t
}

// target is that of a rule.
func (t *table) target(id uint32) Target {
	r := &t.rules[id]
	if r.odd {
		return t.odd[id]
	}
	a := netip.AddrFrom16(r.address)
	if r.is4 {
		a = a.Unmap()
	}
	return Target{Check: t.pace(id).check, Address: netip.AddrPortFrom(a, r.port)}
}

// pace is when a rule is asked.
func (t *table) pace(id uint32) *pace { return t.paces.list[t.rules[id].pace] }

// expect makes room for so many rules in all: just so much for many at once, some more for a few.
func (t *table) expect(n int) {
	if t.expected = n; n > cap(t.rules) {
		t.rules = append(make([]rule, 0, max(n, cap(t.rules)+cap(t.rules)/8)), t.rules...)
	}
	t.byTarget.Expect(n)
	t.wheel.Expect(n)
}

// find is the number of a target; false: nobody wants it.
func (t *table) find(target Target) (uint32, bool) {
	return t.byTarget.Find(maphash.Comparable(t.seed, target), func(id uint32) bool { return t.target(id) == target })
}

// add makes a rule, which is nowhere yet.
func (t *table) add(target Target) uint32 {
	var id uint32
	if n := len(t.unused); n > 0 {
		id, t.unused = t.unused[n-1], t.unused[:n-1]
	} else {
		id = uint32(len(t.rules))
		t.rules = append(t.rules, rule{})
	}
	a := target.Address.Addr()
	t.rules[id] = rule{pace: t.paces.hold(target.Check), address: a.As16(), port: target.Address.Port(), is4: a.Is4(), fresh: true}
	if t.target(id) != target {
		t.rules[id].odd, t.odd[id] = true, target
	}
	t.byTarget.Add(id)
	return id
}

// leave makes a rule one that nobody wants. Its number is free at once, or when it comes round.
func (t *table) leave(id uint32) {
	r := &t.rules[id]
	t.byTarget.Remove(id)
	t.crowd.put(id, false)
	r.gone = true
	if r.state == waiting || r.state == free {
		t.wheel.Remove(id)
		t.release(id)
	}
}

// release frees a number.
func (t *table) release(id uint32) {
	t.paces.release(t.rules[id].pace)
	if t.rules[id].odd {
		delete(t.odd, id)
	}
	t.rules[id] = rule{}
	t.unused = append(t.unused, id)
}

// wait puts a rule into the wheel, to fire at its plan.
func (t *table) wait(id uint32) {
	t.rules[id].state = waiting
	t.wheel.Add(id, uint64((t.rules[id].plan+tick-1)/tick))
}

// queueFirst puts a new rule among those that were never asked.
func (t *table) queueFirst(id uint32) {
	t.rules[id].state = queued
	t.first.push(id)
}

// fire queues what is due at a time, and returns how many probes it is too late for.
func (t *table) fire(now time.Duration) (missed uint64) {
	t.wheel.Advance(uint64(now/tick), func(id uint32, _ uint64) {
		r := &t.rules[id]
		if r.means == nobody {
			r.state = queued
			t.due.push(id)
			return
		}
		plan, n := t.pace(id).waken(r.plan, now)
		missed += n
		if r.plan = plan; n > 0 {
			t.wait(id)
			return
		}
		r.state = queued
		t.due.push(id)
	})
	return missed
}

// pop takes the next number out of a queue; false: nobody wants it any more.
func (t *table) pop(q *queue) (uint32, bool) {
	id := q.pop()
	if t.rules[id].gone {
		t.release(id)
		return id, false
	}
	return id, true
}
