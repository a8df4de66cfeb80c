// Package single keeps the objects of a manager equal to a file, for deployments with one or two
// balancers that are configured by editing it.
package single

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
)

const (
	// settle is how long a file must be unchanged before it is read, because editors write in
	// several steps.
	settle = 200 * time.Millisecond
	// patience limits that wait, because a path that changes constantly would otherwise never be
	// read.
	patience = 10 * settle
	// retry is the pause before a retry after a transient error.
	retry = time.Second
	// confirm is how long content that deletes objects, or parts of them, must stay unchanged
	// before it is applied, because a file that is missing, empty or truncated may be incomplete. A
	// file that a process has open for writing is also left alone for this time.
	confirm = 3 * time.Second
)

// Deletes is the error of Options.Apply for content that deletes objects, or parts of them, and is
// not settled yet. The same content is applied again, once it is.
type Deletes struct{ Objects []string }

// Error implements error.
func (e Deletes) Error() string { return "no longer holds " + strings.Join(e.Objects, ", ") }

// Attempt is the context of one call of Options.Apply.
type Attempt struct {
	// Deletions reports whether objects, and parts of them, that the path no longer holds may be
	// deleted.
	Deletions bool
	// Unchanged reports whether the path holds the same content as when the attempt began.
	Unchanged func() bool
}

// Transient wraps a transient error of Options.Apply: the same content is applied again.
type Transient struct{ Err error }

// Error implements error.
func (e Transient) Error() string { return e.Err.Error() }

// Unwrap implements errors.
func (e Transient) Unwrap() error { return e.Err }

// Options configures Follow. All fields except Reload, Told, Clock and Log are required.
type Options struct {
	// Path is a YAML file, or a directory whose .yaml and .yml files are read.
	Path string
	// Apply applies the content of the path to the manager, completely or, with an error, not at
	// all. It returns a summary for people.
	Apply func(ctx context.Context, a Attempt) (string, error)
	// Reload requests an immediate read of the path, whether it changed or not.
	Reload <-chan os.Signal
	// Told receives the outcome of every attempt: err is nil, or the reason why the last good state
	// is kept.
	Told  func(summary string, err error)
	Clock clock.Clock
	Log   *slog.Logger
}

// Follow applies the path's content and then every change of it, until ctx ends. Refused content
// changes nothing. It returns an error if the path cannot be watched.
func Follow(ctx context.Context, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Told == nil {
		o.Told = func(string, error) {}
	}
	watcher, err := newWatch(o.Path)
	if err != nil {
		return fmt.Errorf("watch %s: %w", o.Path, err)
	}
	defer watcher.Close()
	f := follower{o: o}
	again := f.attempt(ctx, true)
	var changed time.Time // the first unread change; zero when there is none
	soon := func() {
		now := o.Clock.Now()
		if changed.IsZero() {
			changed = now
		}
		if now.Sub(changed) < patience {
			again = o.Clock.After(settle)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-watcher.Events:
			if !ok {
				return fmt.Errorf("watch %s: the kernel ended it", o.Path)
			}
			soon()
		case err := <-watcher.Errors:
			// Events may be lost, so read the path.
			o.Log.Warn("watching the configuration", "path", o.Path, "error", err)
			soon()
		case <-o.Reload:
			changed = time.Time{}
			watcher.refresh()
			again = f.attempt(ctx, true)
		case <-again:
			changed = time.Time{}
			// Refresh first, so that changes after the read are detected.
			watcher.refresh()
			again = f.attempt(ctx, false)
		}
	}
}

// follower holds the state of the last attempt.
type follower struct {
	o Options
	// tried is the content of the last attempt; failed reports whether to retry it.
	tried  [sha256.Size]byte
	failed bool
	// waits: the content of the last attempt deletes objects, and is unchanged since then.
	waits bool
	since time.Time
	// opened is when a file was first found open for writing since the last attempt, not counting
	// reads that wait to delete; zero when none was.
	opened time.Time
}

// attempt applies the content if it differs from the last attempt, or always when forced. It
// returns a channel for the time of the next attempt, nil to wait for a change.
func (f *follower) attempt(ctx context.Context, forced bool) <-chan time.Time {
	sum, err := digest(f.o.Path)
	now := f.o.Clock.Now()
	same := err == nil && sum == f.tried
	if same && f.waits && !forced && now.Sub(f.since) < confirm {
		return f.o.Clock.After(confirm - now.Sub(f.since))
	}
	if same && !forced && !f.failed && !f.waits {
		f.opened = time.Time{}
		return nil
	}
	a := Attempt{Deletions: same && f.waits && now.Sub(f.since) >= confirm, Unchanged: func() bool {
		found, err := digest(f.o.Path)
		return err == nil && found == sum
	}}
	if name := f.written(now, forced, a.Deletions); name != "" {
		f.o.Log.Info("file is being written, it is applied later", "file", name)
		return f.o.Clock.After(retry)
	}
	f.opened = time.Time{} // the next change waits for its writer again
	waited := same && f.waits
	f.tried, f.failed, f.waits = sum, false, false
	var summary string
	if err == nil {
		summary, err = f.o.Apply(ctx, a)
	}
	if ctx.Err() != nil {
		return nil
	}
	if deletes := (Deletes{}); errors.As(err, &deletes) {
		f.waits = true
		if !waited {
			f.since = now
			f.o.Log.Info("objects are deleted once the content is unchanged for a while", "path", f.o.Path, "objects", strings.Join(deletes.Objects, ", "), "wait", confirm)
		}
		return f.o.Clock.After(max(confirm-now.Sub(f.since), settle))
	}
	f.o.Told(summary, err)
	if errors.As(err, new(Transient)) {
		f.failed = true
		return f.o.Clock.After(retry)
	}
	return nil
}

// written returns a file of the path that another process has open for writing and that must be
// waited for; empty when there is none. Content that deletes nothing waits at most for confirm, and
// not at all when forced.
func (f *follower) written(now time.Time, forced, deletes bool) string {
	if !deletes && (forced || !f.opened.IsZero() && now.Sub(f.opened) >= confirm) {
		return ""
	}
	files, err := Files(f.o.Path)
	if err != nil {
		return ""
	}
	for _, file := range files {
		if hasWriter(file) {
			if f.opened.IsZero() && !deletes {
				f.opened = now
			}
			return file
		}
	}
	return ""
}

// digest returns a hash of the content of a file, or of the YAML files in a directory with their
// names.
func digest(path string) (sum [sha256.Size]byte, err error) {
	files, err := Files(path)
	if err != nil {
		return sum, err
	}
	var all bytes.Buffer
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return sum, fmt.Errorf("read configuration: %w", err)
		}
		fmt.Fprintf(&all, "%s %d\n", file, len(content))
		all.Write(content)
	}
	return sha256.Sum256(all.Bytes()), nil
}

// Files returns the path itself, or the .yaml and .yml files of a directory in the order of their
// names.
func Files(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	var files []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".yaml" || ext == ".yml") {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("read configuration: %s: must hold at least one .yaml file", path)
	}
	return files, nil
}
