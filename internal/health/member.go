// Package health turns the results of probes into verdicts: of one check of a member, of all of them, of an endpoint, and of the
// machine that asks. It is pure: results, time and random numbers come in as parameters.
package health

// Member is the health of a member as the probes of one check tell it. The zero value is not usable; see New, Begin and Adopt.
type Member struct {
	alive bool
	// fresh: no good probe was seen since New, so that the first one suffices.
	fresh bool
	// asked: something is known of it.
	asked bool
	// run counts the latest probes in a row that contradict alive; always below the threshold.
	run uint32
}

// New is a member nobody has probed yet: dead, and alive with the first good probe.
func New() Member { return Member{fresh: true} }

// Begin is a member nobody has probed yet. One that is initially up is alive until its thresholds say otherwise, and counts as
// asked; else it is New.
func Begin(up bool) Member {
	if up {
		return Adopt(true)
	}
	return New()
}

// Adopt is a member whose last state is known: it stays until its thresholds say otherwise.
func Adopt(alive bool) Member { return Member{alive: alive, asked: true} }

// Asked tells that something is known of it: a result, or the state that it was adopted with.
func (m Member) Asked() bool { return m.asked }

// Fresh tells that it was never alive and nothing is known of it.
func (m Member) Fresh() bool { return m.fresh }

// Alive tells the present state.
func (m Member) Alive() bool { return m.alive }

// Observe folds one result in and tells whether the member flipped. A dead member comes up after rise good probes in
// a row, a live one goes down after fall bad ones; 0 counts as 1.
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
