package mux

// Overruled counts the endpoints of the plan whose backends all count as alive whatever checks say: because too few of them are
// healthy (panic), and because none is (failOpen).
func (a *Agent) Overruled() (panics, failOpen int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.roster.groups {
		switch {
		case g.decision.FailOpen:
			failOpen++
		case g.decision.Panic:
			panics++
		}
	}
	return panics, failOpen
}
