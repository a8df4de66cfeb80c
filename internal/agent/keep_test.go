package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
)

// TestPlansAreKeptAtAPace: the first plan is on disk when it is obeyed, those that follow are keepPace later, that of a new epoch
// at once, and the last one when the agent ends.
func TestPlansAreKeptAtAPace(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := &loop{
			o:    Options{Clock: clock.System{}, StateDir: dir, Log: slog.New(slog.DiscardHandler)},
			keep: make(chan struct{}, 1), applied: &folded{},
		}
		l.kept = l.applied
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
			signal(l.keep)
			synctest.Wait()
		}
		expect := func(revision int64) {
			t.Helper()
			up, err := loadPlan(dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := up.GetRevision(); got != revision {
				t.Fatalf("revision %d is kept, expected %d", got, revision)
			}
		}
		obey(5, 1)
		expect(5)
		obey(6, 1)
		obey(7, 1)
		expect(5)
		time.Sleep(keepPace)
		synctest.Wait()
		expect(7)
		obey(8, 2)
		expect(8)
		obey(9, 2)
		expect(8)
		end()
		<-done
		expect(9)
	})
}

// TestPlanIsKeptWhenThereIsRoomAgain: one that could not be written is, without another one.
func TestPlanIsKeptWhenThereIsRoomAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	synctest.Test(t, func(t *testing.T) {
		l := &loop{
			o:    Options{Clock: clock.System{}, StateDir: dir, Log: slog.New(slog.DiscardHandler)},
			keep: make(chan struct{}, 1), applied: &folded{revision: 5, epoch: 1}, kept: &folded{},
		}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go l.keepAll(ctx)
		signal(l.keep)
		synctest.Wait()
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(keepPace)
		synctest.Wait()
		if up, err := loadPlan(dir); err != nil || up.GetRevision() != 5 {
			t.Errorf("revision %d is kept (%v), expected 5", up.GetRevision(), err)
		}
	})
}
