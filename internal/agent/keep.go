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

// keepPace is the least time between two writes of plans of one epoch. It is short, because tables
// outlive a killed agent: the next agent applies the plan on disk until a manager sends a newer
// one. With 200 ms TestHostUpgradeLosesNoPacket lost packets.
const keepPace = 20 * time.Millisecond

// keepShare bounds the time spent on writing plans without sync to 1/keepShare, because a plan of
// 60,000 VIPs takes longer than keepPace.
const keepShare = 10

// paceAfter returns the time until the next write after one of this duration.
func paceAfter(took time.Duration) time.Duration { return max(keepPace, (keepShare-1)*took) }

// syncPace is the least time between two synced writes of plans of one epoch, because they wait for
// the disk, which a manager's store may share. After a loss of power the next agent may have a plan
// that is older by this, but with the current tunnel sources and keys. Tables do not outlive a loss
// of power.
const syncPace = time.Second

// keepRetry is the time between two attempts to write, and between two checks of the written files.
const keepRetry = time.Second

// keepAll writes the newest applied plan to disk without delaying the next one. It writes and syncs
// a plan of a new epoch immediately, so that no older one is applied after a restart, and likewise
// a plan with other tunnel sources or keys. It writes other plans every keepPace or, if they are
// large, for a keepShare of the time, and syncs them every syncPace. It writes a last time when ctx
// ends. It restores files that others removed from the state directory.
func (l *loop) keepAll(ctx context.Context) {
	var pause, settle <-chan time.Time // nil: the next plan is written, or synced, immediately
	look := l.o.Clock.After(keepRetry)
	recent := recentPlans{dir: l.o.StateDir}
	// Log each fault once, because a disk may be full for days.
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
			took = 0 // mostly the disk's time, which syncPace bounds
		}
		pause, l.kept = l.o.Clock.After(paceAfter(took)), f
		if sync {
			settle, l.synced = l.o.Clock.After(syncPace), f
		}
	}
}

// otherKeys reports whether tunnel sources, or keys of objects that are in both plans, differ. Each
// step of such a change waits until all nodes applied the previous one, so that a node that returns
// to an earlier step loses packets.
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

// newerThan reports whether a plan has a later epoch than another one, or a later revision in the
// same epoch.
func (f *folded) newerThan(o *folded) bool {
	return f.epoch > o.epoch || f.epoch == o.epoch && f.revision > o.revision
}

// write writes a plan to disk; sync: it waits until the plan is durable.
func (l *loop) write(f *folded, sync bool, recent *recentPlans) error {
	if !sync {
		return recent.save(f.snapshot())
	}
	if l.kept.newerThan(f) { // f is of another cluster, and the recent plans would seem newer
		if err := removeRecent(l.o.StateDir); err != nil {
			return err
		}
	}
	return savePlan(l.o.StateDir, f.snapshot())
}

// restoreState writes the certificate and the plan again if they were removed from the state
// directory. Without them the next agent of this node could do nothing, because its token is used.
// It also retries a renewed certificate that could not be written.
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

// isMissing reports whether there is no file at path, or no directory on the way to it.
func isMissing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

// fault is the text of the last error of a repeated operation; empty: it succeeded.
type fault string

// log logs an error unless it equals the previous one.
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
