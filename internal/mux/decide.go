package mux

import (
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
)

// obeyLocked writes the health changes in c to the data plane. It runs under mu, so that two
// transitions of one member reach the tables in order.
func (a *Agent) obeyLocked(c change) {
	for key, d := range c.decisions {
		if d.Open() {
			a.markLocked(key, d)
		}
	}
	a.keepMarksLocked()
	a.o.Tables.SetAlive(c.bits)
	backups := make(map[lb.EndpointKey]bool, len(c.decisions))
	for key, d := range c.decisions {
		backups[key] = d.Backup
		if !d.Open() {
			a.markLocked(key, d)
		}
	}
	a.keepMarksLocked()
	if len(backups) > 0 {
		a.o.Tables.SetBackup(backups)
	}
	a.logDecisions(c)
}

// logDecisions logs the decisions of endpoints; more than maxFlipLines are summed up in one line.
func (a *Agent) logDecisions(c change) {
	if len(c.decisions) > maxFlipLines {
		var backup, open, panics int
		for _, d := range c.decisions {
			for n, holds := range map[*int]bool{&backup: d.Backup, &open: d.FailOpen, &panics: d.Panic} {
				if holds {
					*n++
				}
			}
		}
		a.o.Log.Warn("health of all", "endpoints", len(c.decisions), "backups take part", backup, "fail open", open, "panic", panics)
		return
	}
	for key, d := range c.decisions {
		a.o.Log.Warn("health of all", "vip", key.VIP, "protocol", key.Protocol, "port", key.Port,
			"backups take part", d.Backup, "fails open", d.FailOpen, "panics", d.Panic)
	}
}

// markLocked puts a decision into the decision log for the next agent; keepMarksLocked writes it.
func (a *Agent) markLocked(key lb.EndpointKey, d health.Decision) {
	w := mark{Decision: d}
	if d.Open() {
		w.alive = a.roster.aliveIn(key)
	}
	a.marks.put(key, w)
}

// keepMarksLocked writes pending decisions to the log file.
func (a *Agent) keepMarksLocked() {
	if err := a.marks.flush(); err != nil {
		a.o.Log.Error("health of all", "error", err)
	}
}

// markOpenLocked logs the decisions of open endpoints, before the tables have them.
func (a *Agent) markOpenLocked(keys []lb.EndpointKey) {
	for _, key := range keys {
		if d := a.roster.decision(key); d.Open() {
			a.markLocked(key, d)
		}
	}
	a.keepMarksLocked()
}

// markFollowedLocked logs the decisions of endpoints after the tables have them. Endpoints that are
// not in the plan have none.
func (a *Agent) markFollowedLocked(keys []lb.EndpointKey) {
	for _, key := range keys {
		a.markLocked(key, a.roster.decision(key))
	}
	a.keepMarksLocked()
}

// unmarkOthersLocked removes the logged decisions of endpoints that are not in the plan.
func (a *Agent) unmarkOthersLocked() {
	a.marks.prune(a.roster.groups)
	a.keepMarksLocked()
}
