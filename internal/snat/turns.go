package snat

import (
	"container/heap"
	"slices"
	"time"
)

// turns are the requests that wait, of tenants in turn by their weights, and of each in the order in which they came; asks and what is given back by
// themselves. A tenant that is leased more than its share while others ask waits for its next share, and nobody else does: who asks
// while a batch is stored waits for it, and a full one takes many times as long as one of a few ranges. A DIP that is leased more than its own share
// waits likewise, and no other DIP of the tenant does.
type turns struct {
	rules   *Rules
	tenants map[string]*tenant
	// ready are tenants with asks, the next one first, and paced those that have had their share.
	ready, paced []*tenant
	// parked are asks of DIPs that have had their share, the first one to go on at the top.
	parked parked
	// giving are tenants with ranges to give back.
	giving []*tenant
	// recent are the two tenants whose asks were served last, the newest first.
	recent [2]served
	// gives: what is given back has the next turn.
	gives bool
	// clock is the pass of the tenant that was served last: those that begin to ask start from there.
	clock float64
}

type served struct {
	tenant *tenant
	at     time.Time
}

// tenant is who shares.
type tenant struct {
	name string
	held int
	// weight is its share of turns and ranges as a multiple of that of a tenant of weight 1. pass grows by 1/weight with each turn: the tenant with
	// the least has the next one.
	weight, pass float64
	asks, gives  []*request
	// left is what it may still be leased, in ranges, at a time; below 0 it has had some of what comes.
	left float64
	at   time.Time
}

const (
	// companyFor is how long a tenant that asked counts as one that others must leave room for.
	companyFor = 10 * time.Second
	// portions is into how many a second's share is divided: a tenant that waits for its share goes on with one of them.
	portions = 64
	// sharedPart is which part of a batch is filled while several tenants ask.
	sharedPart = 8
)

// tenantOf is the tenant of a name.
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

// begin gives a tenant turns. It saved none while it had nothing to ask.
func (q *turns) begin(t *tenant) {
	t.pass = max(t.pass, q.clock)
	q.ready = append(q.ready, t)
}

// weigh gives a tenant its weight, 0 being 1.
func (q *turns) weigh(t *tenant, weight uint32) { t.weight = float64(max(1, weight)) }

// rate is how many ranges a second a tenant may be leased while others ask, burst how many at once.
func (q *turns) rate(t *tenant) float64  { return float64(q.rules.Rate) * t.weight }
func (q *turns) burst(t *tenant) float64 { return float64(q.rules.Burst) * t.weight }

// Waiting tells whether requests wait.
func (q *turns) Waiting() bool { return len(q.ready)+len(q.paced)+len(q.giving)+len(q.parked) > 0 }

// Ready tells whether a batch is to be made: an ask waits that may be served, or what is given back has waited for long enough.
func (q *turns) Ready(now time.Time) bool {
	due := q.due(now)
	return !due.IsZero() && !due.After(now)
}

// due is when a batch is to be made, unless there are other requests; zero: nothing waits.
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

// next takes the request whose turn it is; nil: none may be served now.
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

// firstAsk takes the first ask of a tenant that may be served, and parks those before it; nil: all are parked.
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

// refillDIP gives a DIP what it may be leased since it was last asked about. It returns how long it is until the DIP may be leased a range; 0: it may.
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

// parked are asks that wait for their DIP's share: a heap by time.
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

// foremost is the index of the ready tenant whose turn it is: of those with the least pass the one that waits longest.
func (q *turns) foremost() (least int) {
	for i, t := range q.ready {
		if t.pass < q.ready[least].pass {
			least = i
		}
	}
	return least
}

// first takes the first request of a queue.
func first(queue *[]*request) *request {
	r := (*queue)[0]
	(*queue)[0] = nil
	if *queue = (*queue)[1:]; len(*queue) == 0 {
		*queue = nil
	}
	return r
}

// charge notes what a DIP was leased, and its tenant. None of these owes more than a portion.
func (q *turns) charge(k *dip, ranges int) {
	k.left -= float64(ranges)
	t := k.vip.tenant
	t.left = max(t.left-float64(ranges), -q.rate(t)/portions)
}

// resume gives tenants and DIPs their turns again that waited for their share.
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

// resumes is when a tenant that has had its share goes on.
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

// accompanied tells whether others than the tenant ask, or did not long ago.
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

// shared tells whether several tenants ask, or did not long ago.
func (q *turns) shared(now time.Time) bool {
	return q.recent[0].tenant != nil && q.accompanied(q.recent[0].tenant, now)
}
