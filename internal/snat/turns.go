package snat

import "time"

// turns are the requests that wait, of tenants in turn, and of each in the order in which they came; asks and what is given back by
// themselves. A tenant that is leased more than its share while others ask waits for its next share, and nobody else does: who asks
// while a batch is stored waits for it, and a full one takes many times as long as one of a few ranges.
type turns struct {
	rules   *Rules
	tenants map[string]*tenant
	// ready are tenants with asks, the next one first, and paced those that have had their share.
	ready, paced []*tenant
	// giving are tenants with ranges to give back.
	giving []*tenant
	// recent are the two tenants whose asks were served last, the newest first.
	recent [2]served
	// gives: what is given back has the next turn.
	gives bool
}

type served struct {
	tenant *tenant
	at     time.Time
}

// tenant is who shares.
type tenant struct {
	name        string
	held        int
	asks, gives []*request
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
		t = &tenant{name: name, left: float64(q.rules.Burst)}
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
		q.ready = append(q.ready, t)
	}
}

// Waiting tells whether requests wait.
func (q *turns) Waiting() bool { return len(q.ready)+len(q.paced)+len(q.giving) > 0 }

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
		t := q.ready[0]
		q.ready = q.ready[1:]
		if q.refill(t, now); t.left <= 0 && q.accompanied(t, now) {
			q.paced = append(q.paced, t)
			continue
		}
		r := first(&t.asks)
		if len(t.asks) > 0 {
			q.ready = append(q.ready, t)
		}
		if q.recent[0].tenant != t {
			q.recent[1] = q.recent[0]
		}
		q.recent[0] = served{t, now}
		return r
	}
	return nil
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

// charge notes what a tenant was leased. None owes more than a portion.
func (q *turns) charge(t *tenant, ranges int) {
	t.left = max(t.left-float64(ranges), -float64(q.rules.Rate)/portions)
}

// resume gives tenants their turns again that waited for their share.
func (q *turns) resume(now time.Time) {
	paced := q.paced
	q.paced = nil
	for _, t := range paced {
		if q.resumes(t, now).After(now) {
			q.paced = append(q.paced, t)
		} else {
			q.ready = append(q.ready, t)
		}
	}
}

// resumes is when a tenant that has had its share goes on.
func (q *turns) resumes(t *tenant, now time.Time) time.Time {
	if !q.accompanied(t, now) {
		return now
	}
	q.refill(t, now)
	missing := float64(q.rules.Rate)/portions - t.left
	if missing <= 0 {
		return now
	}
	return now.Add(time.Duration(missing / float64(q.rules.Rate) * float64(time.Second)))
}

func (q *turns) refill(t *tenant, now time.Time) {
	if past := now.Sub(t.at); past > 0 && !t.at.IsZero() {
		t.left = min(t.left+past.Seconds()*float64(q.rules.Rate), float64(q.rules.Burst))
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
