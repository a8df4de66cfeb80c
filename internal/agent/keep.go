package agent

import (
	"context"
	"time"
)

// keepPace is the least time between two writings of plans of one epoch: each waits for the disk, which may be that of a store
// too. It is short: tables outlive an agent that is killed, and the next one makes them follow the plan that was kept, until it
// hears from a manager.
const keepPace = 20 * time.Millisecond

// keepAll writes the newest applied plan to disk, off the way of the next one: that of a new epoch at once, so that no older one
// is obeyed after a restart. At the end it writes a last time.
func (l *loop) keepAll(ctx context.Context) {
	var pause <-chan time.Time // nil: the next plan is written when it comes
	for last := false; !last; {
		select {
		case <-l.keep:
		case <-pause:
			pause = nil
		case <-ctx.Done():
			last = true
		}
		l.mu.Lock()
		f := l.applied
		l.mu.Unlock()
		if f == l.kept || pause != nil && !last && f.epoch == l.kept.epoch {
			continue
		}
		pause = l.o.Clock.After(keepPace)
		if err := savePlan(l.o.StateDir, f.snapshot()); err != nil {
			l.o.Log.Error("cannot keep the plan, tries again", "error", err)
			continue
		}
		l.kept = f
	}
}
