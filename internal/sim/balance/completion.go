package balance

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"time"
)

// Work returns how long a request keeps an otherwise idle server busy.
type Work func(r *rand.Rand) time.Duration

// Uniform returns work that is equal for all requests.
func Uniform(mean time.Duration) Work { return func(*rand.Rand) time.Duration { return mean } }

// Bimodal is 0.53 of the mean for nine of ten, and ten times as much for the tenth.
func Bimodal(mean time.Duration) Work {
	short := mean * 10 / 19
	return func(r *rand.Rand) time.Duration {
		if r.IntN(10) == 0 {
			return 10 * short
		}
		return short
	}
}

// Skewed is 0.0099 of the mean for nine of ten, and a thousand times as much for the tenth: the
// workload of Cheetah's Figure 8 (NSDI 2020), where a tenth of the requests takes 500 ms and the
// others take some hundred microseconds.
func Skewed(mean time.Duration) Work {
	short := mean * 10 / 1009
	return func(r *rand.Rand) time.Duration {
		if r.IntN(10) == 0 {
			return 1000 * short
		}
		return short
	}
}

// Completion runs a scheduler while requests keep servers busy for `busy` of their time. Each
// request is a separate connection. It returns the durations from the start of the requests to
// their end, in order. A server processes all its requests concurrently, each with an equal part of
// its time.
func Completion(scheduler string, s Setup, work Work, mean time.Duration, busy float64, during time.Duration) []time.Duration {
	r := rand.New(rand.NewPCG(s.Seed, 2))
	c := newCrowd(scheduler, s, r)
	servers := make([]server, s.Servers)
	perStep := busy * float64(s.Servers) / (float64(mean) / float64(step))
	var took []time.Duration
	warm := int(during/step) / 5
	for c.now < warm+int(during/step) {
		for i := range servers {
			servers[i].work(c.now, func(q request) {
				c.end(i, q.by)
				if q.begun >= warm {
					took = append(took, time.Duration(c.now+1-q.begun)*step)
				}
			})
		}
		c.pass()
		for range poisson(r, perStep) {
			i, by := c.give()
			servers[i].begin(request{begun: c.now, by: by}, float64(work(r))/float64(step))
		}
	}
	slices.Sort(took)
	return took
}

// Percentile returns the duration that this share of all does not exceed.
func Percentile(took []time.Duration, share float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	return took[min(int(share*float64(len(took))), len(took)-1)]
}

// server shares its time equally among its requests.
type server struct {
	each float64 // the total work done for each request, in steps
	open requests
}

// request is one in progress. It ends when each request has received `until` in total.
type request struct {
	until     float64
	begun, by int
}

func (s *server) begin(q request, work float64) {
	q.until = s.each + work
	heap.Push(&s.open, q)
}

// work does the work of a step.
func (s *server) work(now int, done func(request)) {
	for left := 1.0; len(s.open) > 0; {
		n := float64(len(s.open))
		need := (s.open[0].until - s.each) * n
		if need > left {
			s.each += left / n
			return
		}
		left -= need
		s.each = s.open[0].until
		done(heap.Pop(&s.open).(request))
	}
}

// requests is a heap with the request that ends first on top.
type requests []request

func (q requests) Len() int           { return len(q) }
func (q requests) Less(i, j int) bool { return q[i].until < q[j].until }
func (q requests) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *requests) Push(x any)        { *q = append(*q, x.(request)) }
func (q *requests) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
