package balance

import (
	"math"
	"math/rand/v2"
	"time"
)

// Spread is the distribution of connections over servers, averaged over the measured time.
type Spread struct {
	Mean     float64 // connections of a server
	Beyond   float64 // how many more than that the fullest server has
	Variance float64 // between servers
}

// Imbalance runs a scheduler with `active` active connections on average. They begin at random, and
// last `life` on average, exponentially distributed. It begins with that many, runs for two lives
// and measures the second.
func Imbalance(scheduler string, s Setup, active float64, life time.Duration) Spread {
	r := rand.New(rand.NewPCG(s.Seed, 1))
	c := newCrowd(scheduler, s, r)
	type connection struct{ server, by int }
	const most = 30 // lives: one of 10^13 connections lasts longer
	ends := make([][]connection, most*int(life/step))
	begin := func() {
		server, by := c.give()
		end := (c.now + 1 + int(r.ExpFloat64()*float64(life/step))) % len(ends)
		ends[end] = append(ends[end], connection{server, by})
	}
	for range int(active) {
		begin()
	}
	var sum Spread
	looks := 0
	for steps := 2 * int(life/step); c.now < steps; {
		due := &ends[c.now%len(ends)]
		for _, e := range *due {
			c.end(e.server, e.by)
		}
		*due = nil
		c.pass()
		for range poisson(r, active/float64(life/step)) {
			begin()
		}
		if c.now > steps/2 && c.now%50 == 0 {
			sum = sum.add(c.open)
			looks++
		}
	}
	n := float64(looks)
	return Spread{sum.Mean / n, sum.Beyond / n, sum.Variance / n}
}

// add adds a sample of the servers.
func (s Spread) add(open []int) Spread {
	sum, top, squares := 0.0, 0.0, 0.0
	for _, n := range open {
		sum, top = sum+float64(n), math.Max(top, float64(n))
	}
	mean := sum / float64(len(open))
	for _, n := range open {
		squares += (float64(n) - mean) * (float64(n) - mean)
	}
	return Spread{s.Mean + mean, s.Beyond + top - mean, s.Variance + squares/float64(len(open))}
}
