package mux

import (
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
)

// obeyLocked makes the tables follow what a probe or what hosts say changed. It is called under the lock, so that two flips
// of one member reach the tables in order.
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

// logDecisions says what was decided of endpoints.
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

// markLocked remembers a decision for the next agent, once keepMarksLocked is called.
func (a *Agent) markLocked(key lb.EndpointKey, d health.Decision) {
	w := mark{Decision: d}
	if d.Open() {
		w.alive = a.roster.aliveIn(key)
	}
	a.marks.put(key, w)
}

// keepMarksLocked keeps what was marked.
func (a *Agent) keepMarksLocked() {
	if err := a.marks.flush(); err != nil {
		a.o.Log.Error("health of all", "error", err)
	}
}

// markOpenLocked remembers the decisions of endpoints that are open, before the tables do.
func (a *Agent) markOpenLocked(keys []lb.EndpointKey) {
	for _, key := range keys {
		if d := a.roster.decision(key); d.Open() {
			a.markLocked(key, d)
		}
	}
	a.keepMarksLocked()
}

// markFollowedLocked remembers the decisions of endpoints once the tables follow them, and none of those that are not in the
// plan.
func (a *Agent) markFollowedLocked(keys []lb.EndpointKey) {
	for _, key := range keys {
		a.markLocked(key, a.roster.decision(key))
	}
	a.keepMarksLocked()
}

// unmarkOthersLocked forgets what is marked of endpoints that are not in the plan.
func (a *Agent) unmarkOthersLocked() {
	a.marks.prune(a.roster.groups)
	a.keepMarksLocked()
}
