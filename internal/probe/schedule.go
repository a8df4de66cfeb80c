package probe

import "time"

// schedule starts due probes until the engine is closed.
func (e *Engine) schedule() {
	for {
		e.step()
		e.mu.Lock()
		sleep := e.untilNext()
		e.mu.Unlock()
		var timer <-chan time.Time
		if sleep >= 0 {
			timer = e.options.Clock.After(sleep)
		}
		select {
		case <-timer:
		case <-e.poke:
		case <-e.closing:
			return
		}
	}
}

// untilNext returns how long the schedule may sleep; below 0: until it is poked. mu is held.
func (e *Engine) untilNext() time.Duration {
	now := e.now()
	e.wakes = 0
	switch next, some := e.table.wheel.Next(); {
	case len(e.odd) > 0:
		e.wakes = now
	case e.table.due.len()+e.table.first.len() > 0:
		e.wakes = (now/tick + 1) * tick
	case some:
		e.wakes = max(time.Duration(next)*tick, now+tick)
	default:
		return -1
	}
	return max(e.wakes-now, 0)
}

// step starts due probes, up to the limit of one tick, and moves targets that their prober could
// not decide.
func (e *Engine) step() {
	e.asking.Lock()
	defer e.asking.Unlock()
	moves := e.moves[:0]
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	now := e.now()
	e.stats.Late += e.table.fire(now)
	moves, e.odd = append(moves, e.odd...), e.odd[:0]
	if this := now / tick; this != e.ticked {
		e.ticked, e.begun = this, 0
	}
	for ; e.begun < maxPerTick; e.begun++ {
		id, some := e.nextLocked()
		if !some {
			break
		}
		r := &e.table.rules[id]
		if r.means == nobody || r.sockets != 0 && uint32(now/time.Second) >= r.sockets {
			moves = append(moves, id)
			continue
		}
		e.handLocked(id, now)
	}
	e.mu.Unlock()
	for _, id := range moves {
		e.move(id, now)
	}
	for i, batch := range e.batches {
		if len(batch) > 0 {
			e.askers[i].Ask(batch)
			e.batches[i] = batch[:0]
		}
	}
	e.moves = moves[:0]
}

// nextLocked returns the next target to be probed. mu is held.
func (e *Engine) nextLocked() (id uint32, some bool) {
	t := e.table
	for t.due.len() > 0 {
		if id, wanted := t.pop(&t.due); wanted {
			return id, true
		}
	}
	for t.first.len() > 0 {
		if r := &t.rules[t.first.ids[t.first.head]]; !r.gone && e.stats.Means[r.means].Out >= maxFirst {
			break
		}
		if id, wanted := t.pop(&t.first); wanted {
			return id, true
		}
	}
	return 0, false
}

// handLocked puts a target into the batch of its prober. mu is held.
func (e *Engine) handLocked(id uint32, now time.Duration) {
	r := &e.table.rules[id]
	r.state, r.handed = out, now
	m := &e.stats.Means[r.means]
	m.Out++
	m.Asked++
	e.batches[r.means] = append(e.batches[r.means], id)
}

// move gives a target to another prober and has it probed: to sockets if packets could not decide,
// back to packets when PacketsRest is over. asking is held.
func (e *Engine) move(id uint32, now time.Duration) {
	e.mu.Lock()
	r := &e.table.rules[id]
	if r.gone {
		e.table.release(id)
		e.mu.Unlock()
		return
	}
	target, old, failed := e.table.target(id), int(r.means), r.state == unsure
	if old == nobody {
		r.state = free
	}
	e.mu.Unlock()
	if old == nobody {
		e.offer(id, target, now, false, false)
		return
	}
	if failed && !e.options.Means[old].Packets {
		e.giveUp(id, now)
		return
	}
	e.askers[old].Remove(id)
	means, full, err := e.find(id, target, failed)
	if err != nil {
		// Its own prober accepted it once and has to accept it again.
		means = old
		if target.tunnelled() && !e.options.Means[old].Packets {
			target = target.Direct()
		}
		if err := e.askers[old].Add(id, target); err != nil {
			panic("probe: a means does not take back what it had: " + err.Error())
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r = &e.table.rules[id]
	e.countLocked(id, old, -1)
	e.countLocked(id, means, 1)
	switch r.means = int8(means); {
	case failed && err != nil:
		e.voidLocked(id, now)
	case failed:
		r.sockets = afterRest(now)
		if target.tunnelled() && !e.table.crowd.has(id) {
			// Sockets only interpret this one answer. The next probe checks the tunnel again.
			r.sockets = 1
		}
		e.handLocked(id, now)
	default:
		e.crowdedLocked(id, full, now)
		e.handLocked(id, now)
	}
}

// giveUp reports a void result for a target that no prober could decide.
func (e *Engine) giveUp(id uint32, now time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.voidLocked(id, now)
}

// voidLocked queues a void result for a target that no prober could decide. mu is held.
func (e *Engine) voidLocked(id uint32, now time.Duration) {
	r := &e.table.rules[id]
	e.stats.Kinds[e.table.pace(id).kind].Void++
	e.resultLocked(Result{
		Target: e.table.target(id), Void: true, Words: "packets could not decide it, and sockets cannot ask it", At: e.begin.Add(r.handed), Took: now - r.handed,
	})
	e.againLocked(id, now, true)
}
