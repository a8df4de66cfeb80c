package balance

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// naiveServe simulates every millisecond.
func naiveServe(due []Due, servers int, choose func(open []int) int) []time.Duration {
	type job struct {
		n    int
		left time.Duration
	}
	took, queues := make([]time.Duration, len(due)), make([][]job, servers)
	for now, n, done := time.Duration(0), 0, 0; done < len(due); now += time.Millisecond {
		for i, q := range queues {
			if len(q) == 0 {
				continue
			}
			if q[0].left -= time.Millisecond; q[0].left == 0 {
				took[q[0].n], queues[i] = now-due[q[0].n].At, q[1:]
				done++
			}
		}
		for ; n < len(due) && due[n].At == now; n++ {
			open := make([]int, servers)
			for i, q := range queues {
				open[i] = len(q)
			}
			to := choose(open)
			queues[to] = append(queues[to], job{n, due[n].Work})
		}
	}
	return took
}

func TestServe(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		servers := 1 + r.IntN(5)
		var due []Due
		for at := 0; len(due) < 200; at += r.IntN(40) {
			due = append(due, Due{time.Duration(at) * time.Millisecond, time.Duration(1+r.IntN(60)) * time.Millisecond})
		}
		for _, choose := range []func() func([]int) int{
			LeastOpen,
			func() func([]int) int { return func([]int) int { return 0 } },
			func() func([]int) int {
				n := 0
				return func(open []int) int { n++; return n % len(open) }
			},
		} {
			if got, want := Serve(due, servers, choose()), naiveServe(due, servers, choose()); !slices.Equal(got, want) {
				t.Fatalf("%d servers: %v take %v, want %v", servers, due, got, want)
			}
		}
	}
}

// Of two servers the less loaded is taken whenever it is drawn. The most loaded is never taken, and
// the least loaded with every draw that contains it, two of n. Any takes all equally often.
func TestChoices(t *testing.T) {
	const n = 30_000
	for name, c := range map[string]struct {
		choose func(*rand.Rand) func([]int) int
		want   [4]float64
	}{"any": {Any, [4]float64{0.25, 0.25, 0.25, 0.25}}, "lesser of two": {LesserOfTwo, [4]float64{1. / 6, 1. / 2, 0, 1. / 3}}} {
		var got [4]float64
		choose := c.choose(rand.New(rand.NewPCG(1, 2)))
		for range n {
			got[choose([]int{2, 0, 3, 1})] += 1.0 / n
		}
		for i := range got {
			if math.Abs(got[i]-c.want[i]) > 0.015 {
				t.Errorf("%s: place %d is taken %v, want %v", name, i, got[i], c.want[i])
			}
		}
	}
}

func TestLeastOpen(t *testing.T) {
	choose := LeastOpen()
	for _, c := range []struct {
		open []int
		want int
	}{{[]int{0, 0, 0}, 0}, {[]int{0, 0, 0}, 1}, {[]int{1, 2, 3}, 0}, {[]int{1, 1, 1}, 1}, {[]int{1, 1, 1}, 2}, {[]int{1, 1, 1}, 0}, {[]int{0, 3, 2}, 0}} {
		if got := choose(c.open); got != c.want {
			t.Errorf("of %v it chooses %d, want %d", c.open, got, c.want)
		}
	}
}
