package probe

import "time"

const (
	// nobody is the prober of a target that no prober accepts.
	nobody = -1
	// offerAgain is the longest time until a target that no prober accepted is offered again: by
	// then there may be room, or the external program.
	offerAgain = 30 * time.Second
)

// offer offers a target without a prober to the probers. If one accepts it, its first probe begins
// immediately, or somewhere within its interval when its health is known. Otherwise offer reports a
// void result if report is set or there was none since the last change. asking is held.
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

// takeLocked assigns a target without a prober to one. mu is held.
func (e *Engine) takeLocked(id uint32, means int, now time.Duration, known bool) {
	r := &e.table.rules[id]
	if r.state == waiting {
		e.table.wheel.Remove(id)
	}
	r.means = int8(means)
	e.stats.Unaskable--
	e.countLocked(id, means, 1)
	switch r.plan = now; {
	case r.state == queued: // already in the due queue
	case known:
		r.fresh = false
		r.plan += time.Duration(e.drawLocked(id) * float64(e.table.pace(id).interval))
		e.table.wait(id)
	default:
		e.table.queueFirst(id)
	}
}
