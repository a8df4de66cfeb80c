// Package health is the state machine of one check: a run of good or bad probes turns a member alive or dead. It is
// pure: results and random numbers come in as parameters.
package health

// Member is the health of one member as its probes tell it. The zero value is not usable; see New and Adopt.
type Member struct {
	alive bool
	// fresh: no good probe was seen since New, so that the first one suffices.
	fresh bool
	// run counts the latest probes in a row that contradict alive; always below the threshold.
	run uint32
}

// New is a member nobody has probed yet: dead, and alive with the first good probe.
func New() Member { return Member{fresh: true} }

// Adopt is a member whose last state is known: it stays until its thresholds say otherwise.
func Adopt(alive bool) Member { return Member{alive: alive} }

// Fresh tells that it was never alive and nothing is known of it.
func (m Member) Fresh() bool { return m.fresh }

// Alive tells the present state.
func (m Member) Alive() bool { return m.alive }

// Observe folds one result in and tells whether the member flipped. A dead member comes up after rise good probes in
// a row, a live one goes down after fall bad ones; 0 counts as 1.
func (m *Member) Observe(good bool, rise, fall uint32) (flipped bool) {
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
