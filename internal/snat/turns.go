package snat

import (
	"container/heap"
	"slices"
	"time"
)

// turns is a fair queue of requests. Tenants are served in turn by their weights, and the requests
// of each in order of arrival; lease requests and returned ranges are queued separately. A tenant
// that got more than its share while others request waits for its next share, and does not delay
// others: requests wait while a batch is stored, and a full batch takes many times as long as one
// of a few ranges. A DIP that got more than its own share waits in the same way, and does not delay
// other DIPs of the tenant.
type turns struct {
	rules   *Rules
	tenants map[string]*tenant
	// ready are tenants with lease requests, the next one first; paced are those that used their
	// share.
	ready, paced []*tenant
	// parked are requests of DIPs that used their share, the first one to continue at the top.
	parked parked
	// giving are tenants with ranges to return.
	giving []*tenant
	// recent are the last two tenants whose lease requests were served, newest first.
	recent [2]served
	// gives: returned ranges have the next turn.
	gives bool
	// clock is the pass of the tenant that was served last. Tenants start from there when they
	// begin to request.
	clock float64
}

type served struct {
	tenant *tenant
	at     time.Time
}

// tenant is a tenant in the queue.
type tenant struct {
	name string
	held int
	// weight is its share of turns and ranges relative to a tenant of weight 1. pass grows by
	// 1/weight with each turn; the tenant with the lowest pass has the next one.
	weight, pass float64
	asks, gives  []*request
	// left is the number of ranges that it may still get, at a time; below 0 it has used some of
	// its future share.
	left float64
	at   time.Time
}

const (
	// companyFor is how long after its last request a tenant counts as competing with others.
	companyFor = 10 * time.Second
	// portions divides a second's share: a tenant that waits for its share continues with one
	// portion.
	portions = 64
	// sharedPart is the divisor of a batch's size while several tenants request.
	sharedPart = 8
)

// tenantOf returns the tenant with the name, and creates it if needed.
func (q *turns) tenantOf(name string) *tenant {
	t := q.tenants[name]
	if t == nil {
		t = &tenant{name: name, weight: 1, left: float64(q.rules.Burst)}
		q.tenants[name] = t
	}
	return t
}

func (q *turns) enqueue(r *request) {
	t := r.dip.vip.tenant
	if r.give {
		if t.gives = append(t.gives, r); len(t.gives) == 1 {
			q.giving = append(q.giving, t)
		}
		return
	}
	if t.asks = append(t.asks, r); len(t.asks) == 1 {
		q.begin(t)
	}
}

// begin adds a tenant to the ready ones. It saved no turns while it had no requests.
func (q *turns) begin(t *tenant) {
	t.pass = max(t.pass, q.clock)
	q.ready = append(q.ready, t)
}

// weigh sets the weight of a tenant; 0 means 1.
func (q *turns) weigh(t *tenant, weight uint32) { t.weight = float64(max(1, weight)) }

// rate is the number of ranges per second that a tenant may get while others request, burst the
// number that it may get immediately.
func (q *turns) rate(t *tenant) float64  { return float64(q.rules.Rate) * t.weight }
func (q *turns) burst(t *tenant) float64 { return float64(q.rules.Burst) * t.weight }

// Waiting reports whether requests wait.
func (q *turns) Waiting() bool { return len(q.ready)+len(q.paced)+len(q.giving)+len(q.parked) > 0 }

// Ready reports whether a batch is due: a lease request can be served, or returned ranges have
// waited long enough.
func (q *turns) Ready(now time.Time) bool {
	due := q.due(now)
	return !due.IsZero() && !due.After(now)
}

// due returns when the next batch is due if no request arrives; zero: nothing waits.
func (q *turns) due(now time.Time) (due time.Time) {
	if len(q.ready) > 0 {
		return now
	}
	for _, t := range q.giving {
		if at := t.gives[0].at.Add(q.rules.Linger); due.IsZero() || at.Before(due) {
			due = at
		}
	}
	for _, t := range q.paced {
		if at := q.resumes(t, now); due.IsZero() || at.Before(due) {
			due = at
		}
	}
	if len(q.parked) > 0 {
		if at := q.parked[0].until; due.IsZero() || at.Before(due) {
			due = at
		}
	}
	return due
}

// next removes and returns the next request; nil: none may be served now.
func (q *turns) next(now time.Time) *request {
	q.gives = !q.gives
	if q.gives && len(q.giving) > 0 {
		return q.nextGive()
	}
	if r := q.nextAsk(now); r != nil {
		return r
	}
	if len(q.giving) > 0 {
		return q.nextGive()
	}
	return nil
}

func (q *turns) nextGive() *request {
	t := q.giving[0]
	q.giving = q.giving[1:]
	r := first(&t.gives)
	if len(t.gives) > 0 {
		q.giving = append(q.giving, t)
	}
	return r
}

func (q *turns) nextAsk(now time.Time) *request {
	for len(q.ready) > 0 {
		i := q.foremost()
		t := q.ready[i]
		q.ready = slices.Delete(q.ready, i, i+1)
		if q.refill(t, now); t.left <= 0 && q.accompanied(t, now) {
			q.paced = append(q.paced, t)
			continue
		}
		r := q.firstAsk(t, now)
		if r != nil {
			q.clock = t.pass
			t.pass += 1 / t.weight
		}
		if len(t.asks) > 0 {
			q.ready = append(q.ready, t)
		}
		if r == nil {
			continue
		}
		if q.recent[0].tenant != t {
			q.recent[1] = q.recent[0]
		}
		q.recent[0] = served{t, now}
		return r
	}
	return nil
}

// firstAsk removes and returns a tenant's first lease request that may be served, and parks those
// before it; nil: all are parked.
func (q *turns) firstAsk(t *tenant, now time.Time) *request {
	for len(t.asks) > 0 {
		r := first(&t.asks)
		if q.rules.DIPRate == 0 || r.adopt != nil {
			return r
		}
		if missing := q.refillDIP(r.dip, now); missing > 0 {
			r.until = now.Add(missing)
			heap.Push(&q.parked, r)
			continue
		}
		return r
	}
	return nil
}

// refillDIP adds a DIP's share since the last call. It returns the time until the DIP may get a
// range; 0: it may now.
func (q *turns) refillDIP(k *dip, now time.Time) time.Duration {
	rate := float64(q.rules.DIPRate)
	if past := now.Sub(k.at); past > 0 && !k.at.IsZero() {
		k.left = min(k.left+past.Seconds()*rate, float64(q.rules.DIPBurst))
	}
	k.at = now
	if k.left >= 1 {
		return 0
	}
	return max(1, time.Duration((1-k.left)/rate*float64(time.Second)))
}

// parked holds requests that wait for their DIP's share: a heap by time.
type parked []*request

// Len implements heap.Interface.
func (p parked) Len() int { return len(p) }

// Less implements heap.Interface.
func (p parked) Less(i, j int) bool { return p[i].until.Before(p[j].until) }

// Swap implements heap.Interface.
func (p parked) Swap(i, j int) { p[i], p[j] = p[j], p[i] }

// Push implements heap.Interface.
func (p *parked) Push(r any) { *p = append(*p, r.(*request)) }

// Pop implements heap.Interface.
func (p *parked) Pop() any {
	last := len(*p) - 1
	r := (*p)[last]
	(*p)[last] = nil
	*p = (*p)[:last]
	return r
}

// foremost returns the index of the next ready tenant: the one with the lowest pass, and of several
// the one that waited longest.
func (q *turns) foremost() (least int) {
	for i, t := range q.ready {
		if t.pass < q.ready[least].pass {
			least = i
		}
	}
	return least
}

// first removes and returns the first request of a queue.
func first(queue *[]*request) *request {
	r := (*queue)[0]
	(*queue)[0] = nil
	if *queue = (*queue)[1:]; len(*queue) == 0 {
		*queue = nil
	}
	return r
}

// charge subtracts leased ranges from the share of a DIP and its tenant. A tenant owes at most a
// portion.
func (q *turns) charge(k *dip, ranges int) {
	k.left -= float64(ranges)
	t := k.vip.tenant
	t.left = max(t.left-float64(ranges), -q.rate(t)/portions)
}

// resume makes tenants and DIPs ready again whose wait for their share is over.
func (q *turns) resume(now time.Time) {
	for len(q.parked) > 0 && !q.parked[0].until.After(now) {
		q.enqueue(heap.Pop(&q.parked).(*request))
	}
	paced := q.paced
	q.paced = nil
	for _, t := range paced {
		if q.resumes(t, now).After(now) {
			q.paced = append(q.paced, t)
		} else {
			q.begin(t)
		}
	}
}

// resumes returns when a tenant that used its share continues.
func (q *turns) resumes(t *tenant, now time.Time) time.Time {
	if !q.accompanied(t, now) {
		return now
	}
	q.refill(t, now)
	missing := q.rate(t)/portions - t.left
	if missing <= 0 {
		return now
	}
	return now.Add(time.Duration(missing / q.rate(t) * float64(time.Second)))
}

func (q *turns) refill(t *tenant, now time.Time) {
	if past := now.Sub(t.at); past > 0 && !t.at.IsZero() {
		t.left = min(t.left+past.Seconds()*q.rate(t), q.burst(t))
	}
	t.at = now
}

// accompanied reports whether other tenants request, or did recently.
func (q *turns) accompanied(t *tenant, now time.Time) bool {
	for _, s := range q.recent {
		if s.tenant != nil && s.tenant != t && now.Sub(s.at) <= companyFor {
			return true
		}
	}
	for _, o := range q.ready {
		if o != t {
			return true
		}
	}
	return false
}

// shared reports whether several tenants request, or did recently.
func (q *turns) shared(now time.Time) bool {
	return q.recent[0].tenant != nil && q.accompanied(q.recent[0].tenant, now)
}
