package probe

import (
	"errors"
	"math"
	"time"
)

// crowd is the set of targets for which packets had no room. Sockets probe them, or no prober does.
// The zero value is empty.
type crowd struct {
	bits []uint64
	n    int
}

func (c *crowd) has(id uint32) bool { return int(id/64) < len(c.bits) && c.bits[id/64]>>(id%64)&1 == 1 }

// put adds a number to the set, or removes it.
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

// crowdedLocked records whether refused is a lack of room for a target. If so, the target is
// offered to packets again after PacketsRest. mu is held.
func (e *Engine) crowdedLocked(id uint32, refused error, now time.Duration) {
	in := errors.Is(refused, ErrCrowded)
	e.table.crowd.put(id, in)
	if e.table.rules[id].sockets = 0; in {
		e.table.rules[id].sockets = afterRest(now)
	}
}

// afterRest returns the second in which packets are tried again.
func afterRest(now time.Duration) uint32 {
	return uint32(min((now+PacketsRest)/time.Second+1, math.MaxUint32))
}
