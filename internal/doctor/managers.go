package doctor

// managers checks whether managers accept the node of this machine, once it has joined.
func (e *examination) managers() {
	const check = "managers"
	switch why, err := e.m.LockedOut(e.o.State); {
	case err != nil:
		e.warn(check, "run it as root: sudo shunt doctor", "%v", err)
	case why != "":
		e.fail(check, "write a new token to the --token-file of the agent", "%s", why)
	}
}
