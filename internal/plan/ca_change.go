package plan

import (
	"slices"
	"time"
)

// CAPhase is a step of the replacement of the cluster's CA.
type CAPhase string

// The phases, in order. Each begins when all managers and nodes have what the one before gave them, so that at every moment each side of a
// connection accepts the certificate of the other one.
const (
	// CATrust: managers and nodes accept certificates of both CAs. The former one signs.
	CATrust CAPhase = "trust"
	// CAIssue: the next CA signs, and all certificates are replaced.
	CAIssue CAPhase = "issue"
	// CARetire: managers and nodes accept certificates of the next CA alone.
	CARetire CAPhase = "retire"
	// CADone: the former CA is of no use any more.
	CADone CAPhase = "done"
)

// caPhases are the phases in order.
var caPhases = []CAPhase{CATrust, CAIssue, CARetire, CADone}

// Known reports whether the phase is one of these.
func (p CAPhase) Known() bool { return slices.Contains(caPhases, p) }

// Before reports whether a phase comes before another one.
func (p CAPhase) Before(o CAPhase) bool { return slices.Index(caPhases, p) < slices.Index(caPhases, o) }

// CAChange is how far the replacement of a CA is.
type CAChange struct {
	Phase CAPhase
	// Since is when the phase began.
	Since time.Time
	// Turn is the manager that may start anew to change which CAs it accepts; empty: none.
	Turn string
	// Through is the last phase that may begin.
	Through CAPhase
	// Without are nodes that are not waited for.
	Without []string
}

// CAParty is a manager or a node as the leader knows it.
type CAParty struct {
	Name string
	// Up: it is connected.
	Up bool
	// Able: it reported its CAs at all; builds that do not cannot follow.
	Able bool
	// TrustsFormer and TrustsNext are which CAs it accepts certificates of.
	TrustsFormer, TrustsNext bool
	// OfNext: its own certificate is of the next CA.
	OfNext bool
	// Leads: it is the manager that leads.
	Leads bool
	// Error is why it does not follow, by its own report.
	Error string
}

// CAFacts are what the next step depends on.
type CAFacts struct {
	Managers, Nodes []CAParty
	// Unsealed: keys in the store are sealed with the former secret.
	Unsealed bool
}

// Kinds of CAWait.
const (
	CAWaitManager = "manager"
	CAWaitNode    = "node"
	CAWaitStore   = "store"
	CAWaitCommand = "command"
)

// CAWait is what a phase waits for.
type CAWait struct{ Kind, Name, Reason string }

// CAOld is the reason of CAWait for a party that has to be upgraded first.
const CAOld = "runs a build that cannot follow the replacement of the CA"

// Other reasons of CAWait.
const (
	caAway      = "is away"
	caNoTrust   = "does not accept certificates of the new CA yet"
	caNoCert    = "has no certificate of the new CA yet"
	caNoRetired = "still accepts certificates of the former CA"
	caUnsealed  = "keys are being sealed with the new secret"
	caConfirm   = "shunt rotate ca must be run again: it has to store what the next phase needs"
)

// why is why a party does not have what the phase gives; empty when it does.
func (p *CAParty) why(phase CAPhase) string {
	reason := ""
	switch {
	case phase == CATrust && !p.TrustsNext:
		reason = caNoTrust
	case phase == CAIssue && !p.OfNext:
		reason = caNoCert
	case phase == CARetire && (p.TrustsFormer || !p.Able):
		reason = caNoRetired
	default:
		return ""
	}
	switch {
	case p.Error != "":
		return reason + ": " + p.Error
	case !p.Up:
		return caAway
	case !p.Able:
		return CAOld
	}
	return reason
}

// Unable returns whom a change that begins would wait for without end: the parties that are away, or of builds that cannot follow.
func (c *CAChange) Unable(f CAFacts) (out []CAWait) {
	for _, list := range c.parties(f) {
		for _, p := range list.of {
			switch {
			case !p.Up:
				out = append(out, CAWait{list.kind, p.Name, caAway})
			case !p.Able:
				out = append(out, CAWait{list.kind, p.Name, CAOld})
			}
		}
	}
	return out
}

type caParties struct {
	kind string
	of   []CAParty
}

// parties are those that are waited for.
func (c *CAChange) parties(f CAFacts) []caParties {
	nodes := slices.DeleteFunc(slices.Clone(f.Nodes), func(p CAParty) bool { return slices.Contains(c.Without, p.Name) })
	return []caParties{{CAWaitManager, f.Managers}, {CAWaitNode, nodes}}
}

// Waits returns what the phase waits for.
func (c *CAChange) Waits(f CAFacts) (out []CAWait) {
	if c.Phase == CADone {
		return nil
	}
	for _, list := range c.parties(f) {
		for _, p := range list.of {
			if why := p.why(c.Phase); why != "" {
				out = append(out, CAWait{list.kind, p.Name, why})
			}
		}
	}
	if c.Phase == CAIssue && f.Unsealed {
		out = append(out, CAWait{CAWaitStore, "", caUnsealed})
	}
	if len(out) == 0 && c.Phase != CARetire && c.Through.Before(c.following()) {
		out = append(out, CAWait{CAWaitCommand, "", caConfirm})
	}
	return out
}

// following is the phase after this one.
func (c *CAChange) following() CAPhase {
	return caPhases[min(slices.Index(caPhases, c.Phase)+1, len(caPhases)-1)]
}

// Step returns the change a step further, and whether there is one: the next phase when nothing is waited for, or the next manager's turn. Managers
// start anew one after the other, and only while all are up, so that the store keeps its majority; the leader comes last.
func (c CAChange) Step(f CAFacts, now time.Time) (CAChange, bool) {
	next := c
	if c.Phase == CADone {
		return c, false
	}
	if len(c.Waits(f)) == 0 {
		next.Phase, next.Since, next.Turn = c.following(), now, ""
		return next, true
	}
	next.Turn = c.turn(f.Managers)
	return next, next.Turn != c.Turn
}

// turn chooses the manager that may start anew. One that has its turn and has not used it keeps it.
func (c *CAChange) turn(managers []CAParty) string {
	if c.Phase == CAIssue {
		return ""
	}
	chosen, leads := "", false
	for _, m := range managers {
		waits := m.why(c.Phase) != ""
		switch {
		case m.Name == c.Turn && waits:
			return c.Turn
		case !m.Up:
			return ""
		case waits && (chosen == "" || leads && !m.Leads):
			chosen, leads = m.Name, m.Leads
		}
	}
	return chosen
}
