package balance

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// small returns a pool of 60 servers with muxes of two CPUs.
func small(muxes int, refresh float64) Setup {
	return Setup{Servers: 60, Muxes: muxes, CPUs: 2, Refresh: refresh, Delay: 20 * time.Millisecond, Seed: 1}
}

// TestHashIsChance checks that plain hashing distributes connections by Poisson's law: the variance
// equals the mean.
func TestHashIsChance(t *testing.T) {
	got := Imbalance(Hash, small(4, 10), 6000, 5*time.Second)
	if math.Abs(got.Mean-100) > 3 || got.Variance < 80 || got.Variance > 120 {
		t.Errorf("%+v, want mean and variance 100", got)
	}
}

// TestMuxesDoNotHerd checks that several muxes with the same late loads balance servers nearly as
// well as one mux for all connections: the variance is at most twice that of one mux, and far below
// chance. The variance of one mux is bounded by an oracle with immediate knowledge of every
// connection, plus the chance that the hosts' delay adds: connections that end or begin between two
// reports.
func TestMuxesDoNotHerd(t *testing.T) {
	const active, life = 6000.0, 10 * time.Second
	hash := Imbalance(Hash, small(4, 10), active, life).Variance
	for _, c := range []struct {
		scheduler string
		better    float64 // than hashing
	}{{lb.SchedulerP2C, 10}, {lb.SchedulerLeastConnections, 25}} {
		for _, refresh := range []float64{10, 100} {
			alone := Imbalance(c.scheduler, small(1, refresh), active, life).Variance
			// Of one server, between two reports.
			chance := active / 60 / life.Seconds() * (1.5/refresh + 0.02)
			if bound := oracle(active, life) + 4*chance + 3; alone > bound {
				t.Errorf("%s at %v Hz, one mux: variance %.2f, want at most %.2f", c.scheduler, refresh, alone, bound)
			}
			for _, muxes := range []int{2, 4, 16} {
				got := Imbalance(c.scheduler, small(muxes, refresh), active, life).Variance
				if got > 2*alone+0.5 || got > hash/c.better {
					t.Errorf("%s at %v Hz, %d muxes: variance %.2f, of one mux %.2f, hashed %.2f", c.scheduler, refresh, muxes, got, alone, hash)
				}
			}
		}
	}
}

// TestLateAndLostWords checks schedulers with load reports that are late, or that muxes lose
// independently. They balance servers less, but far better than chance. No mux herds, whether or
// not muxes see connections end.
func TestLateAndLostWords(t *testing.T) {
	const active, life = 6000.0, 10 * time.Second
	hash := Imbalance(Hash, small(4, 10), active, life).Variance
	for _, scheduler := range []string{lb.SchedulerP2C, lb.SchedulerLeastConnections} {
		for _, c := range []struct {
			delay  time.Duration
			lost   float64
			better float64 // than hashing
		}{{20 * time.Millisecond, 0.3, 8}, {300 * time.Millisecond, 0, 6}, {300 * time.Millisecond, 0.3, 4}} {
			for _, blind := range []bool{false, true} {
				s := small(4, 10)
				s.Delay, s.Lost, s.Blind = c.delay, c.lost, blind
				got := Imbalance(scheduler, s, active, life).Variance
				if got > hash/c.better {
					t.Errorf("%s, %v late, %v lost, blind %v: variance %.2f, hashed %.2f", scheduler, c.delay, c.lost, blind, got, hash)
				}
			}
		}
	}
}

// oracle returns the variance if each connection goes to the server with the fewest at that moment.
func oracle(active float64, life time.Duration) float64 {
	r := rand.New(rand.NewPCG(1, 9))
	open := make([]int, 60)
	type end struct{ at, server int }
	var ends []end
	begin := func(now int) {
		server := 0
		for i, n := range open {
			if n < open[server] {
				server = i
			}
		}
		open[server]++
		ends = append(ends, end{now + 1 + int(r.ExpFloat64()*float64(life/step)), server})
	}
	for range int(active) {
		begin(0)
	}
	var sum Spread
	looks := 0
	for now := range int(life / step) {
		if now%10 == 0 {
			ends = slices.DeleteFunc(ends, func(e end) bool {
				if e.at <= now {
					open[e.server]--
				}
				return e.at <= now
			})
		}
		for range poisson(r, active/float64(life/step)) {
			begin(now)
		}
		if now > int(life/step)/2 && now%50 == 0 {
			sum = sum.add(open)
			looks++
		}
	}
	return sum.Variance / float64(looks)
}

// TestRoundRobinBeatsChance checks that equal shares leave only the chance of connection ends: half
// of the variance.
func TestRoundRobinBeatsChance(t *testing.T) {
	hash, got := Imbalance(Hash, small(1, 10), 6000, 5*time.Second), Imbalance(lb.SchedulerRoundRobin, small(1, 10), 6000, 5*time.Second)
	if got.Variance > 0.7*hash.Variance {
		t.Errorf("variance %v, hashed %v", got.Variance, hash.Variance)
	}
}

// TestEveryScheduler checks that all connections reach a server, and that the same seed gives the
// same result.
func TestEveryScheduler(t *testing.T) {
	for _, name := range Schedulers {
		s := Setup{Servers: 10, Muxes: 2, CPUs: 2, Refresh: 50, Seed: 5}
		first, again := Imbalance(name, s, 500, time.Second), Imbalance(name, s, 500, time.Second)
		if first != again {
			t.Errorf("%s: %+v, then %+v", name, first, again)
		}
		if math.Abs(first.Mean-50) > 10 {
			t.Errorf("%s: %v connections on a server, want 50", name, first.Mean)
		}
	}
}

// TestServerSharesItsTime compares the server with one that distributes its time in tiny pieces.
func TestServerSharesItsTime(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	var s server
	type naive struct {
		left  float64
		begun int
	}
	var open []naive
	ended, wanted := map[int]int{}, map[int]int{}
	for now := range 400 {
		s.work(now, func(q request) { ended[q.begun] = now })
		const pieces = 2000
		for range pieces {
			share := 1.0 / pieces / float64(max(len(open), 1))
			open = slices.DeleteFunc(open, func(n naive) bool {
				if n.left <= share {
					wanted[n.begun] = now
				}
				return n.left <= share
			})
			for i := range open {
				open[i].left -= share
			}
		}
		if r.IntN(8) == 0 {
			work := 1 + 10*r.Float64()
			s.begin(request{begun: now}, work)
			open = append(open, naive{work, now})
		}
	}
	if len(ended) < 20 || len(ended)-len(wanted) > 1 || len(wanted)-len(ended) > 1 {
		t.Fatalf("%d requests ended, want %d", len(ended), len(wanted))
	}
	for begun, at := range ended {
		if want := wanted[begun]; want != 0 && (at-want > 1 || want-at > 1) {
			t.Errorf("the request of step %d ended at %d, want %d", begun, at, want)
		}
	}
}

// TestWorks checks that a tenth of the requests needs 1, 10 or 1,000 times as much as the others,
// with the same mean.
func TestWorks(t *testing.T) {
	const n, mean = 200_000, 300 * time.Millisecond
	for name, c := range map[string]struct {
		work  Work
		ratio float64
	}{"uniform": {Uniform(mean), 1}, "bimodal": {Bimodal(mean), 10}, "skewed": {Skewed(mean), 1000}} {
		r := rand.New(rand.NewPCG(3, 4))
		sum, long := time.Duration(0), 0
		least, most := c.work(r), time.Duration(0)
		for range n {
			took := c.work(r)
			least, most, sum = min(least, took), max(most, took), sum+took
			if took > mean {
				long++
			}
		}
		if got := float64(most) / float64(least); math.Abs(got-c.ratio) > c.ratio/1000 {
			t.Errorf("%s: from %v to %v", name, least, most)
		}
		if got := float64(sum) / n / float64(mean); math.Abs(got-1) > 0.03 {
			t.Errorf("%s: %v of the mean", name, got)
		}
		if got := float64(long) / n; c.ratio > 1 && math.Abs(got-0.1) > 0.005 {
			t.Errorf("%s: %v of the requests are long", name, got)
		}
	}
}

// TestCompletion checks the gain of schedulers when servers are busy, and that no request is lost.
func TestCompletion(t *testing.T) {
	const mean = 100 * time.Millisecond
	s := Setup{Servers: 16, Muxes: 2, CPUs: 2, Refresh: 100, Delay: 5 * time.Millisecond, Seed: 2}
	for name, work := range map[string]Work{"uniform": Uniform(mean), "bimodal": Bimodal(mean)} {
		hash := Completion(Hash, s, work, mean, 0.8, 30*time.Second)
		if want := 0.8 * 16 * 300; math.Abs(float64(len(hash))-want) > 0.1*want {
			t.Errorf("%s: %d requests, want %.0f", name, len(hash), want)
		}
		for _, scheduler := range []string{lb.SchedulerP2C, lb.SchedulerLeastConnections} {
			got := Completion(scheduler, s, work, mean, 0.8, 30*time.Second)
			if slow, hashed := Percentile(got, 0.99), Percentile(hash, 0.99); 2*slow > hashed {
				t.Errorf("%s, %s: 99 of 100 within %v, hashed %v: want half of that", name, scheduler, slow, hashed)
			}
		}
	}
	if Percentile(nil, 0.5) != 0 || Percentile([]time.Duration{1, 2, 3}, 1) != 3 {
		t.Error("percentiles of few")
	}
}
