package probe

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/probe/index"
	"github.com/shuntlb/shunt/internal/probe/wheel"
)

// state is the state of a target between two probes.
type state uint8

const (
	free    state = iota
	waiting       // in the wheel
	queued        // due
	out           // handed to a prober, no answer yet
	unsure        // the answer was Unsure: another prober has to probe
)

// rule is a target with its place in the schedule. Its index in the table is its number in the
// probers. Times are since the engine was made. It has no pointers, because there are many targets.
type rule struct {
	// plan is when the next probe is to begin, or when the pending one was to begin; handed is when
	// a prober got it.
	plan, handed time.Duration
	// address, port and is4 are those of its target. If odd is set, table.odd has the whole target.
	address [16]byte
	pace    uint32 // in table.paces, 0: the number is free
	// sockets is the second until which packets are not tried; 0: they may be.
	sockets uint32
	run     run
	port    uint16
	is4     bool
	odd     bool
	state   state
	means   int8 // index of its prober; -1: none
	// gone: the target is no longer wanted; the number is freed when its state next changes. fresh:
	// it was never probed.
	gone, fresh bool
}

// maxSpare is the largest capacity, in numbers, that an empty queue keeps.
const maxSpare = 4096

// queue is a FIFO of numbers.
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

// table holds the targets and their states. It has no lock and no clock, and calls no prober.
type table struct {
	rules    []rule
	unused   []uint32
	byTarget index.Index // wanted targets only
	seed     maphash.Seed
	// expected is how many targets there will be at least. salt makes the plans of neighbours
	// differ between engines.
	expected int
	salt     uint64
	paces    paces
	// odd holds the targets that are more than a check and an address: through tunnels, or in a
	// zone.
	odd map[uint32]Target
	// wheel holds the waiting targets, in ticks. due and first are the targets to be probed:
	// planned ones, and those that were never probed, which come after.
	wheel      *wheel.Wheel
	due, first queue
	crowd      crowd
}

func newTable() *table {
	t := &table{seed: maphash.MakeSeed(), paces: newPaces(), odd: map[uint32]Target{}, wheel: wheel.New(0)}
	t.byTarget.Hash = func(id uint32) uint64 { return maphash.Comparable(t.seed, t.target(id)) }
	return t
}

// target returns the target with a number.
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

// pace returns the schedule of a target.
func (t *table) pace(id uint32) *pace { return t.paces.list[t.rules[id].pace] }

// expect makes room for n targets in all: exactly n if n is large, an eighth more than now if n is
// small.
func (t *table) expect(n int) {
	if t.expected = n; n > cap(t.rules) {
		t.rules = append(make([]rule, 0, max(n, cap(t.rules)+cap(t.rules)/8)), t.rules...)
	}
	t.byTarget.Expect(n)
	t.wheel.Expect(n)
}

// find returns the number of a target; false: it is not wanted.
func (t *table) find(target Target) (uint32, bool) {
	return t.byTarget.Find(maphash.Comparable(t.seed, target), func(id uint32) bool { return t.target(id) == target })
}

// add adds a target, which is in no queue yet, and returns its number.
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

// leave marks a target as no longer wanted. Its number is freed immediately, or when its state next
// changes.
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

// wait puts a target into the wheel, to fire at its plan.
func (t *table) wait(id uint32) {
	t.rules[id].state = waiting
	t.wheel.Add(id, uint64((t.rules[id].plan+tick-1)/tick))
}

// queueFirst queues a new target with those that were never probed.
func (t *table) queueFirst(id uint32) {
	t.rules[id].state = queued
	t.first.push(id)
}

// fire queues the targets due at now. It returns the number of probes skipped because it is too
// late for them.
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

// pop takes the next number out of a queue; false: it is no longer wanted, and was freed.
func (t *table) pop(q *queue) (uint32, bool) {
	id := q.pop()
	if t.rules[id].gone {
		t.release(id)
		return id, false
	}
	return id, true
}
