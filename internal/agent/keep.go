package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// keepPace is the least time between two writes of plans of one epoch. It is short, because tables outlive an agent that is
// killed: the next agent applies the plan on disk until a manager sends a newer one. With 200 ms TestHostUpgradeLosesNoPacket lost
// packets.
const keepPace = 20 * time.Millisecond

// keepShare bounds the part of the time that goes into writing plans that are not synced: a plan of 60,000 VIPs takes longer than keepPace.
const keepShare = 10

// paceAfter returns the time from a write that took so long to the next one.
func paceAfter(took time.Duration) time.Duration { return max(keepPace, (keepShare-1)*took) }

// syncPace is the least time between two writes of plans of one epoch that wait for the disk, which a store may share. After a loss
// of power the next agent may have a plan that is older by it, but with the present tunnel sources and keys. Tables do not outlive that.
const syncPace = time.Second

// keepRetry is the time between two attempts to write what could not be written, and between two looks at what was.
const keepRetry = time.Second

// keepAll writes the newest applied plan to disk, off the way of the next one: that of a new epoch at once and synced, so that no
// older one is obeyed after a restart, as well as one with other tunnel sources or keys; others every keepPace or, if they are large, at a keepShare of the time, and every syncPace synced. At the end it writes a last time. It restores
// what others removed from the state directory.
func (l *loop) keepAll(ctx context.Context) {
	var pause, settle <-chan time.Time // nil: the next plan is written, or synced, when it comes
	look := l.o.Clock.After(keepRetry)
	recent := recentPlans{dir: l.o.StateDir}
	// Faults are logged once: a disk may be full for days.
	var keeping, restoring fault
	for last := false; !last; {
		select {
		case <-l.keep:
		case <-pause:
			pause = nil
		case <-settle:
			settle = nil
		case <-look:
			look = l.o.Clock.After(keepRetry)
			restoring.log(l.o.Log, "cannot restore the state directory, tries again", l.restoreState())
			continue
		case <-ctx.Done():
			last = true
		}
		l.mu.Lock()
		f := l.applied
		l.mu.Unlock()
		other := f.epoch != l.kept.epoch || l.kept.newerThan(f) || l.synced != nil && otherKeys(&l.synced.plan, &f.plan)
		if f == l.synced || pause != nil && !last && !other {
			continue
		}
		sync := settle == nil || last || other
		if !sync && f == l.kept {
			continue
		}
		began := l.o.Clock.Now()
		err := l.write(f, sync, &recent)
		if keeping.log(l.o.Log, "cannot keep the plan, tries again", err); err != nil {
			pause = l.o.Clock.After(keepRetry)
			continue
		}
		took := l.o.Clock.Now().Sub(began)
		if sync {
			took = 0 // most of it is the disk's time, and syncPace bounds it
		}
		pause, l.kept = l.o.Clock.After(paceAfter(took)), f
		if sync {
			settle, l.synced = l.o.Clock.After(syncPace), f
		}
	}
}

// otherKeys reports whether tunnel sources or keys of what is in both plans are not the same. The steps of such a change wait until all nodes
// applied the one before, so that packets are lost if a node falls back behind it.
func otherKeys(before, after *plan.Plan) bool {
	if !slices.Equal(before.TunnelSources, after.TunnelSources) || !slices.Equal(before.Switches, after.Switches) || !slices.Equal(before.RingKeys, after.RingKeys) {
		return true
	}
	if !plan.SameSlice(before.Cookies, after.Cookies) {
		for i := range after.Cookies {
			k := &after.Cookies[i]
			had := plan.CookiesOf(before.Cookies, lb.EndpointKey{VNI: k.VNI, VIP: k.VIP}).Keys
			if len(had) > 0 && !slices.Equal(had, k.Keys) {
				return true
			}
		}
	}
	if !plan.SameSlice(before.CIDs, after.CIDs) {
		for i := range after.CIDs {
			k := &after.CIDs[i]
			had := plan.CIDsOf(before.CIDs, lb.EndpointKey{VNI: k.VNI, VIP: k.VIP})
			if len(had) > 0 && !slices.Equal(had, k.Keys) {
				return true
			}
		}
	}
	return false
}

// newerThan reports whether a plan is of a later epoch than another one, or of a later revision of the same.
func (f *folded) newerThan(o *folded) bool {
	return f.epoch > o.epoch || f.epoch == o.epoch && f.revision > o.revision
}

// write writes a plan to disk, and waits until it is there if sync is set.
func (l *loop) write(f *folded, sync bool, recent *recentPlans) error {
	if !sync {
		return recent.save(f.snapshot())
	}
	if l.kept.newerThan(f) { // f is of another cluster: the recent plans would seem newer
		if err := removeRecent(l.o.StateDir); err != nil {
			return err
		}
	}
	return savePlan(l.o.StateDir, f.snapshot())
}

// restoreState writes the certificate and the plan again if they are not in the state directory any more: without them the next agent of this
// node could do nothing, as its token is used. A renewed certificate that could not be written is tried again.
func (l *loop) restoreState() error {
	l.mu.Lock()
	creds := l.creds
	l.mu.Unlock()
	var errs []error
	if creds != nil && (creds.unsaved.Load() || isMissing(filepath.Join(l.o.StateDir, credentialsFile))) {
		if err := writeFile(filepath.Join(l.o.StateDir, credentialsFile), creds.content); err != nil {
			errs = append(errs, err)
		} else if !creds.unsaved.Swap(false) {
			l.o.Log.Warn("restored the certificate, which was removed from the state directory")
		}
	}
	if l.kept.revision > 0 && isMissing(filepath.Join(l.o.StateDir, planFile)) {
		if err := savePlan(l.o.StateDir, l.kept.snapshot()); err != nil {
			errs = append(errs, err)
		} else {
			l.synced = l.kept
			l.o.Log.Warn("restored the plan, which was removed from the state directory")
		}
	}
	return errors.Join(errs...)
}

// isMissing reports whether there is no file at path, nor a directory on the way to it.
func isMissing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

// fault is the last error of something that is done again and again, in words; empty when it went well.
type fault string

// log logs an error unless it is that of the time before.
func (f *fault) log(log *slog.Logger, message string, err error) {
	now := fault("")
	if err != nil {
		now = fault(err.Error())
	}
	if now != *f && now != "" {
		log.Error(message, "error", err)
	}
	*f = now
}
