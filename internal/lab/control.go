package lab

import "context"

// startShunt starts the manager and the agents.
func (l *Lab) startShunt(context.Context) error { return nil }
