package probe

import (
	"errors"
	"math"
	"time"
)

// crowd is the numbers of rules that a means had no room for: another one asks them, or nobody. The zero value is none.
type crowd struct {
	bits []uint64
	n    int
}

func (c *crowd) has(id uint32) bool { return int(id/64) < len(c.bits) && c.bits[id/64]>>(id%64)&1 == 1 }

// put makes a number one of the crowd, or not.
func (c *crowd) put(id uint32, in bool) {
	if c.has(id) == in {
		return
	}
	for int(id/64) >= len(c.bits) {
		c.bits = append(c.bits, 0)
	}
	c.bits[id/64] ^= 1 << (id % 64)
	if in {
		c.n++
	} else {
		c.n--
	}
}

// crowdedLocked notes whether a means had no room for a rule, by what it said, and has it offered the rule again when it rested.
// mu is held.
func (e *Engine) crowdedLocked(id uint32, refused error, now time.Duration) {
	in := errors.Is(refused, ErrCrowded)
	e.table.crowd.put(id, in)
	if e.table.rules[id].sockets = 0; in {
		e.table.rules[id].sockets = afterRest(now)
	}
}

// afterRest is the second in which packets that did not suffice are tried again.
func afterRest(now time.Duration) uint32 {
	return uint32(min((now+PacketsRest)/time.Second+1, math.MaxUint32))
}
