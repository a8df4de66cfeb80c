package agent

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestPlansAreKeptAtAPace: the first plan is written when it is applied, the next ones after
// keepPace, one of a new epoch immediately, and the last one when the agent ends. Each is synced
// syncPace later.
func TestPlansAreKeptAtAPace(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := &loop{
			o:    Options{Clock: clock.System{}, StateDir: dir, Log: slog.New(slog.DiscardHandler)},
			keep: make(chan struct{}, 1), applied: &folded{},
		}
		l.kept, l.synced = l.applied, l.applied
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.keepAll(ctx)
		}()
		obey := func(revision, epoch int64) {
			l.mu.Lock()
			l.applied = &folded{revision: revision, epoch: epoch}
			l.mu.Unlock()
			notify.Send(l.keep)
			synctest.Wait()
		}
		expect := func(revision, synced int64) {
			t.Helper()
			up, err := loadPlan(dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := up.GetRevision(); got != revision {
				t.Fatalf("revision %d is kept, expected %d", got, revision)
			}
			if got := syncedPlan(t, dir).GetRevision(); got != synced {
				t.Fatalf("revision %d is synced, expected %d", got, synced)
			}
		}
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		obey(5, 1)
		expect(5, 5)
		obey(6, 1)
		obey(7, 1)
		expect(5, 5)
		wait(keepPace)
		expect(7, 5)
		obey(8, 1)
		expect(7, 5)
		wait(keepPace)
		expect(8, 5)
		wait(syncPace - 2*keepPace)
		expect(8, 8)
		obey(9, 2)
		expect(9, 9)
		obey(10, 2)
		expect(9, 9)
		wait(keepPace)
		expect(10, 9)
		// Other keys and tunnel sources do not wait.
		for i, p := range []plan.Plan{
			{TunnelSources: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}},
			{RingKeys: []plan.Key{{ID: 1}}},
			{Cookies: []plan.CookieKeys{{VIP: netip.MustParseAddr("203.0.113.10"), Keys: []plan.CookieKey{{Epoch: 1}}}}},
			{Cookies: []plan.CookieKeys{{VIP: netip.MustParseAddr("203.0.113.10"), Keys: []plan.CookieKey{{Epoch: 1}, {Epoch: 2}}}}},
		} {
			revision := int64(11 + i)
			l.mu.Lock()
			l.applied = &folded{revision: revision, epoch: 2, plan: p}
			l.mu.Unlock()
			notify.Send(l.keep)
			synctest.Wait()
			expect(revision, revision)
		}
		obey(15, 2)
		end()
		<-done
		expect(15, 15)
	})
}

// syncedPlan returns the plan that survives a loss of power.
func syncedPlan(t *testing.T, dir string) *apiv1.PlanUpdate {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, planFile))
	if err != nil {
		t.Fatal(err)
	}
	up := &apiv1.PlanUpdate{}
	if err := proto.Unmarshal(content, up); err != nil {
		t.Fatal(err)
	}
	return up
}

// TestPlanOfAnotherCluster: the first plan of another cluster, whose epoch may be earlier or equal,
// replaces recent plans, too, whether the agent continues or starts without a plan.
func TestPlanOfAnotherCluster(t *testing.T) {
	old := &folded{revision: 90, epoch: 40}
	for _, fresh := range []*folded{{revision: 3, epoch: 1}, {revision: 30, epoch: 40}} {
		for _, starts := range []bool{false, true} {
			dir := t.TempDir()
			recent := recentPlans{dir: dir}
			l := &loop{o: Options{StateDir: dir}, kept: &folded{}}
			for _, sync := range []bool{true, false, false} {
				if err := l.write(old, sync, &recent); err != nil {
					t.Fatal(err)
				}
				l.kept = old
			}
			if starts {
				if err := os.Remove(filepath.Join(dir, planFile)); err != nil {
					t.Fatal(err)
				}
				if up, err := loadPlan(dir); err != nil || up != nil {
					t.Fatalf("start without a plan: %v, %v", up, err)
				}
				l.kept = &folded{}
			}
			if err := l.write(fresh, true, &recent); err != nil {
				t.Fatal(err)
			}
			if up, err := loadPlan(dir); err != nil || up.GetEpoch() != fresh.epoch || up.GetRevision() != fresh.revision {
				t.Errorf("starts %v: the plan of epoch %d, revision %d is kept (%v), expected epoch %d, revision %d", starts, up.GetEpoch(), up.GetRevision(), err, fresh.epoch, fresh.revision)
			}
		}
	}
}

// TestPlanThatMayNotBeSyncedIsSynced: an agent that starts with a plan on disk syncs it, or the
// newer one that it has applied since.
func TestPlanThatMayNotBeSyncedIsSynced(t *testing.T) {
	for _, applied := range []int64{5, 6} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			kept := &folded{revision: 5, epoch: 1}
			l := &loop{o: Options{Clock: clock.System{}, StateDir: dir, Log: slog.New(slog.DiscardHandler)}, keep: make(chan struct{}, 1), applied: kept, kept: kept}
			if applied != kept.revision {
				l.applied = &folded{revision: applied, epoch: 1}
			}
			ctx, end := context.WithCancel(t.Context())
			defer end()
			go l.keepAll(ctx)
			notify.Send(l.keep)
			synctest.Wait()
			if up := syncedPlan(t, dir); up.GetRevision() != applied {
				t.Errorf("revision %d is synced, want %d", up.GetRevision(), applied)
			}
		})
	}
}

// lines counts the lines of a log.
type lines struct{ n atomic.Int64 }

func (l *lines) Write(p []byte) (int, error) {
	l.n.Add(1)
	return len(p), nil
}

// TestPlanIsKeptWhenThereIsRoomAgain: a plan that could not be written is written later, without
// another plan. The log has one line for it, however long that takes.
func TestPlanIsKeptWhenThereIsRoomAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // in the way of the directory
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		log := &lines{}
		l := &loop{
			o:    Options{Clock: clock.System{}, StateDir: dir, Log: slog.New(slog.NewTextHandler(log, nil))},
			keep: make(chan struct{}, 1), applied: &folded{revision: 5, epoch: 1}, kept: &folded{},
		}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go l.keepAll(ctx)
		notify.Send(l.keep)
		synctest.Wait()
		time.Sleep(100 * keepRetry)
		synctest.Wait()
		if got := log.n.Load(); got != 1 {
			t.Errorf("%d lines in the log, expected 1", got)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(keepRetry)
		synctest.Wait()
		if up, err := loadPlan(dir); err != nil || up.GetRevision() != 5 {
			t.Errorf("revision %d is kept (%v), expected 5", up.GetRevision(), err)
		}
	})
}

// TestRemovedStateIsRestored: an agent whose state directory, or a file in it, was removed restores
// certificate and plan for the next one.
func TestRemovedStateIsRestored(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	_, _, creds := testPKI(t)
	o := Options{Name: "mux1", Role: "mux", StateDir: dir, Clock: clock.System{}, Log: slog.New(slog.DiscardHandler)}
	if err := writeFile(filepath.Join(dir, credentialsFile), creds.content); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		l := &loop{o: o, keep: make(chan struct{}, 1), creds: creds, applied: &folded{revision: 5, epoch: 1}, kept: &folded{}}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go l.keepAll(ctx)
		notify.Send(l.keep)
		synctest.Wait()
		for name, remove := range map[string]func() error{
			"the directory":   func() error { return os.RemoveAll(dir) },
			"the certificate": func() error { return os.Remove(filepath.Join(dir, credentialsFile)) },
			"the plan":        func() error { return os.Remove(filepath.Join(dir, planFile)) },
		} {
			if err := remove(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			time.Sleep(keepRetry)
			synctest.Wait()
			if up, err := loadPlan(dir); err != nil || up.GetRevision() != 5 {
				t.Errorf("%s was removed: revision %d is kept (%v), expected 5", name, up.GetRevision(), err)
			}
			if next, err := loadCredentials(&o); err != nil || next == nil || !bytes.Equal(next.content, creds.content) {
				t.Errorf("%s was removed: the next agent has the certificate %v, %v", name, next, err)
			}
		}
		// The agent does not replace a certificate that another program wrote.
		other := append([]byte("# restored by hand\n"), creds.content...)
		if err := writeFile(filepath.Join(dir, credentialsFile), other); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * keepRetry)
		synctest.Wait()
		if content, err := os.ReadFile(filepath.Join(dir, credentialsFile)); err != nil || !bytes.Equal(content, other) {
			t.Errorf("the file of another program was replaced: %v", err)
		}
		// A renewed certificate that could not be written is written once there is room.
		creds.unsaved.Store(true)
		time.Sleep(keepRetry)
		synctest.Wait()
		if content, err := os.ReadFile(filepath.Join(dir, credentialsFile)); err != nil || !bytes.Equal(content, creds.content) || creds.unsaved.Load() {
			t.Errorf("the renewed certificate is not there: %v", err)
		}
	})
}

// TestLargePlansAreKeptLessOften: writing plans takes at most a tenth of the time, whatever their
// size.
func TestLargePlansAreKeptLessOften(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: keepPace, keepPace / 10: keepPace, keepPace: 9 * keepPace, 200 * time.Millisecond: 1800 * time.Millisecond,
	} {
		if got := paceAfter(took); got != want {
			t.Errorf("after a write of %v: the next one comes %v later, want %v", took, got, want)
		}
	}
}
