// Package health turns the results of probes into verdicts: on one check of a member, on all of its
// checks, on an endpoint, and on the machine that probes. It is pure: results, time and random
// numbers are parameters.
package health

// Member is the state of one check of a member. The zero value is not usable; see New, Begin and
// Adopt.
type Member struct {
	alive bool
	// fresh: there was no good probe since New, so that the first one suffices.
	fresh bool
	// asked: there was a result, or the state was adopted.
	asked bool
	// run counts the latest probes in a row that contradict alive; it is always below the
	// threshold.
	run uint32
}

// New returns a check without results: dead, and alive after the first good probe.
func New() Member { return Member{fresh: true} }

// Begin returns a check without results. One that is initially up is alive until its thresholds are
// reached, and counts as asked; else it is New.
func Begin(up bool) Member {
	if up {
		return Adopt(true)
	}
	return New()
}

// Adopt returns a check whose last state is known. The state stays until its thresholds are
// reached.
func Adopt(alive bool) Member { return Member{alive: alive, asked: true} }

// Asked reports whether there was a result or an adopted state.
func (m Member) Asked() bool { return m.asked }

// Fresh reports whether it was never alive and had no good probe.
func (m Member) Fresh() bool { return m.fresh }

// Alive returns the current state.
func (m Member) Alive() bool { return m.alive }

// Observe records one result and reports whether the state changed. A dead check becomes alive
// after rise good probes in a row, a live one dead after fall bad ones; 0 counts as 1.
func (m *Member) Observe(good bool, rise, fall uint32) (flipped bool) {
	m.asked = true
	if good && m.fresh {
		m.fresh, m.alive, m.run = false, true, 0
		return true
	}
	if good == m.alive {
		m.run = 0
		return false
	}
	need := fall
	if good {
		need = rise
	}
	m.run++
	if m.run < need {
		return false
	}
	m.alive, m.run = good, 0
	return true
}
