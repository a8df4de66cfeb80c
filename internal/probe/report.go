package probe

import (
	"time"

	"github.com/shuntlb/shunt/internal/notify"
)

// AskedDirectly is the suffix of Result.Words for a check through the tunnel that a socket made to
// the backend's own address.
const AskedDirectly = ", asked directly"

// answered applies the answers of a prober.
func (e *Engine) answered(means int, answers []Answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	now := e.now()
	for i := range answers {
		e.answerLocked(means, &answers[i], now)
	}
	if len(e.odd) > 0 {
		notify.Send(e.poke)
	}
	if len(e.pending) > 0 && e.outLocked() == 0 {
		notify.Send(e.quiet)
	}
}

// outLocked returns how many answers are missing. mu is held.
func (e *Engine) outLocked() (n int) {
	for i := range e.stats.Means {
		n += e.stats.Means[i].Out
	}
	return n
}

func (e *Engine) answerLocked(means int, a *Answer, now time.Duration) {
	if int(a.ID) >= len(e.table.rules) {
		return
	}
	r, p := &e.table.rules[a.ID], e.table.pace(a.ID)
	if r.state != out || int(r.means) != means {
		return
	}
	e.stats.Means[means].Out--
	if r.gone {
		e.table.release(a.ID)
		return
	}
	// A probe that waited in its prober began later than it was handed over.
	began := max(r.handed, now-a.Took)
	if late := began - r.plan; !r.fresh {
		e.stats.Start.observe(late)
		if late > p.interval {
			e.stats.Late++
		}
	}
	verdict, words := a.Verdict, a.Words
	if verdict == Bad && p.stoodStill(a.Took) {
		verdict, words = Void, "this machine stood still: "+words
	}
	if e.options.Means[means].Packets {
		e.table.crowd.put(a.ID, a.Crowded)
	}
	kind := &e.stats.Kinds[p.kind]
	switch verdict {
	case Unsure:
		e.stats.Unsure++
		r.state = unsure
		e.odd = append(e.odd, a.ID)
		return
	case Good:
		kind.Good++
		kind.Took.observe(a.Took)
	case Bad:
		kind.Bad++
	case Void:
		kind.Void++
	}
	good, void, target := verdict == Good, verdict == Void, e.table.target(a.ID)
	if target.tunnelled() && !e.options.Means[means].Packets {
		words += AskedDirectly
	}
	e.resultLocked(Result{
		Target: target, Good: good, Void: void, Silent: a.Silent && verdict == Bad, Words: words, At: e.begin.Add(began), Took: a.Took,
	})
	if !void {
		r.run.settle(p, good)
	}
	e.againLocked(a.ID, now, void)
}

// againLocked plans the next probe of a target that was probed. mu is held.
func (e *Engine) againLocked(id uint32, now time.Duration, void bool) {
	r := &e.table.rules[id]
	plan, missed := e.table.pace(id).after(r.plan, now, r.run, r.fresh, void, e.drawLocked(id))
	e.stats.Late += missed
	if !void {
		r.fresh = false
	}
	if r.plan = plan; plan <= now {
		r.state = queued
		e.table.due.push(id)
	} else {
		e.table.wait(id)
	}
	if e.wakes == 0 || max(plan, now)+tick < e.wakes {
		notify.Send(e.poke)
	}
}

// resultLocked queues a result for the report. mu is held.
func (e *Engine) resultLocked(r Result) {
	if e.pending = append(e.pending, r); len(e.pending) == 1 {
		notify.Send(e.some)
	}
}

// maxKept bounds the capacity of the result buffer that is reused. Larger batches are rare.
const maxKept = 4096

// report delivers results in batches until the engine is closed. A batch holds the results that
// arrive within collect of the first, or until no answer is missing.
func (e *Engine) report() {
	var batch []Result
	for {
		select {
		case <-e.some:
		case <-e.closing:
			return
		}
		e.mu.Lock()
		missing := e.outLocked() > 0
		e.mu.Unlock()
		if missing {
			select {
			case <-e.options.Clock.After(collect):
			case <-e.quiet:
			case <-e.closing:
				return
			}
		}
		e.mu.Lock()
		batch, e.pending = e.pending, batch[:0]
		e.mu.Unlock()
		if len(batch) > 0 {
			e.options.Report(batch)
			clear(batch)
		}
		if cap(batch) > maxKept {
			batch = nil
		}
	}
}
