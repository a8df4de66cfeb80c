package balance

import (
	"math/rand/v2"
	"time"

	"github.com/shuntlb/shunt/internal/sched"
)

// Due is a request that arrives at a fixed time, whether or not earlier ones have finished.
type Due struct{ At, Work time.Duration }

// Serve returns how long requests take, in order of arrival, at servers that process one at a time
// in order of arrival. Each request goes to the server that choose returns. choose gets the number
// of unfinished requests of each server.
func Serve(due []Due, servers int, choose func(open []int) int) []time.Duration {
	took := make([]time.Duration, len(due))
	ends, open := make([][]time.Duration, servers), make([]int, servers)
	for n, d := range due {
		for i := range ends {
			for len(ends[i]) > 0 && ends[i][0] <= d.At {
				ends[i] = ends[i][1:]
			}
			open[i] = len(ends[i])
		}
		to := choose(open)
		begins := d.At
		if waiting := ends[to]; len(waiting) > 0 {
			begins = waiting[len(waiting)-1]
		}
		ends[to] = append(ends[to], begins+d.Work)
		took[n] = begins + d.Work - d.At
	}
	return took
}

// LeastOpen chooses as a single balancer with immediate knowledge of every request does: a server
// with the fewest, in turn if there are several.
func LeastOpen() func(open []int) int {
	next := 0
	return func(open []int) int {
		best := next % len(open)
		for i := range open {
			if at := (next + i) % len(open); open[at] < open[best] {
				best = at
			}
		}
		next = best + 1
		return best
	}
}

// Any chooses as hashing does: independent of load.
func Any(r *rand.Rand) func(open []int) int {
	return func(open []int) int { return r.IntN(len(open)) }
}

// LesserOfTwo chooses as p2c does with immediate knowledge of every request.
func LesserOfTwo(r *rand.Rand) func(open []int) int {
	return func(open []int) int {
		first, second := sched.Draws(r.Uint64(), len(open))
		if open[second] < open[first] {
			return second
		}
		return first
	}
}
