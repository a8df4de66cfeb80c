package probe

import "time"

const (
	// nobody asks a rule: no means takes it.
	nobody = -1
	// offerAgain is the longest until means are offered a rule again that none took: there may be room, or a program, by then.
	offerAgain = 30 * time.Second
)

// offer offers a rule that nobody asks to the means, and begins to have it asked when one takes it: at once, or somewhere within
// its interval when it is known how its target is. Else that is reported, if it was not since the last change or is wanted to be.
// asking is held.
func (e *Engine) offer(id uint32, t Target, now time.Duration, known, report bool) {
	means, full, err := e.find(id, t, false)
	e.mu.Lock()
	defer e.mu.Unlock()
	r := &e.table.rules[id]
	e.crowdedLocked(id, full, now)
	if err == nil {
		e.takeLocked(id, means, now, known)
		return
	}
	if report || r.handed < e.changedAt {
		r.handed, e.stats.Why = now, t.Address.String()+": "+err.Error()
		e.stats.Kinds[e.table.pace(id).kind].Void++
		e.resultLocked(Result{Target: t, Void: true, Unaskable: true, Words: "cannot be asked here: " + err.Error(), At: e.begin.Add(now)})
	}
	if r.state != free {
		return // its next offer is planned
	}
	r.plan = now + time.Duration(float64(offerAgain)*(1+e.options.Random())/2)
	e.table.wait(id)
}

// takeLocked has a rule that nobody asked asked by a means.
func (e *Engine) takeLocked(id uint32, means int, now time.Duration, known bool) {
	r := &e.table.rules[id]
	if r.state == waiting {
		e.table.wheel.Remove(id)
	}
	r.means = int8(means)
	e.stats.Unaskable--
	e.countLocked(id, means, 1)
	switch r.plan = now; {
	case r.state == queued: // among those that are due
	case known:
		r.fresh = false
		r.plan += time.Duration(e.drawLocked(id) * float64(e.table.pace(id).interval))
		e.table.wait(id)
	default:
		e.table.queueFirst(id)
	}
}
