package mux

// Overruled returns the numbers of endpoints of the plan all of whose backends count as alive
// regardless of checks: because too few of them are healthy (panics), or because none is
// (failOpen).
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
