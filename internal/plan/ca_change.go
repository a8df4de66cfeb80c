package plan

import (
	"slices"
	"time"
)

// CAPhase is a step of the replacement of the cluster's CA.
type CAPhase string

// The phases, in order. Each begins when all managers and nodes have applied the previous one, so
// that at every moment both sides of a connection accept each other's certificate.
const (
	// CATrust: managers and nodes accept certificates of both CAs. The previous one signs.
	CATrust CAPhase = "trust"
	// CAIssue: the next CA signs, and all certificates are replaced.
	CAIssue CAPhase = "issue"
	// CARetire: managers and nodes accept only certificates of the next CA.
	CARetire CAPhase = "retire"
	// CADone: the previous CA is no longer used.
	CADone CAPhase = "done"
)

// caPhases lists the phases in order.
var caPhases = []CAPhase{CATrust, CAIssue, CARetire, CADone}

// Known reports whether the phase is valid.
func (p CAPhase) Known() bool { return slices.Contains(caPhases, p) }

// Before reports whether a phase comes before another one.
func (p CAPhase) Before(o CAPhase) bool { return slices.Index(caPhases, p) < slices.Index(caPhases, o) }

// CAChange is the progress of a CA replacement.
type CAChange struct {
	Phase CAPhase
	// Since is when the phase began.
	Since time.Time
	// Turn is the manager that may restart to change the CAs that it accepts; empty: none.
	Turn string
	// Through is the last phase that may begin.
	Through CAPhase
	// Without are nodes that the change does not wait for.
	Without []string
}

// CAParty is the leader's view of a manager or a node.
type CAParty struct {
	Name string
	// Up: it is connected.
	Up bool
	// Able: it reported its CAs. Builds that do not report them cannot follow.
	Able bool
	// TrustsFormer and TrustsNext report whether it accepts certificates of the previous and of the
	// next CA.
	TrustsFormer, TrustsNext bool
	// OfNext: its own certificate was issued by the next CA.
	OfNext bool
	// Leads: it is the leader.
	Leads bool
	// Error is the reported reason why it does not follow.
	Error string
}

// CAFacts is the input of the next step.
type CAFacts struct {
	Managers, Nodes []CAParty
	// Unsealed: keys in the store are sealed with the previous secret.
	Unsealed bool
}

// Kinds of CAWait.
const (
	CAWaitManager = "manager"
	CAWaitNode    = "node"
	CAWaitStore   = "store"
	CAWaitCommand = "command"
)

// CAWait is a condition that a phase waits for.
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

// why returns the reason why a party has not applied the phase; empty when it has.
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

// Unable returns the parties that a new change would wait for indefinitely: those that are not
// connected, or run builds that cannot follow.
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

// parties returns the parties that the change waits for.
func (c *CAChange) parties(f CAFacts) []caParties {
	nodes := slices.DeleteFunc(slices.Clone(f.Nodes), func(p CAParty) bool { return slices.Contains(c.Without, p.Name) })
	return []caParties{{CAWaitManager, f.Managers}, {CAWaitNode, nodes}}
}

// Waits returns the conditions that the phase waits for.
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

// following returns the phase after this one.
func (c *CAChange) following() CAPhase {
	return caPhases[min(slices.Index(caPhases, c.Phase)+1, len(caPhases)-1)]
}

// Step returns the change after the next step, and whether there is one: the next phase when there
// is nothing to wait for, or the next manager's turn. Managers restart one at a time, and only
// while all are up, so that the store keeps its majority; the leader is last.
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

// turn selects the manager that may restart. A manager that has its turn and has not used it keeps
// it.
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
