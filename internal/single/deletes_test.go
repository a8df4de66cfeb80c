package single

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
)

// objects follows a directory whose files hold one object per line, as box does.
type objects struct {
	t     *testing.T
	dir   string
	clock *clock.Fake
	f     follower
	have  []string
}

func newObjects(t *testing.T) *objects {
	o := &objects{t: t, dir: t.TempDir(), clock: clock.NewFake(time.Unix(1e9, 0))}
	o.f.o = Options{Path: o.dir, Apply: o.apply, Told: func(string, error) {}, Clock: o.clock, Log: slog.New(slog.DiscardHandler)}
	o.write("a.yaml", "web\nshop\n")
	o.write("b.yaml", "mail\n")
	o.look()
	o.holds("web shop mail")
	return o
}

func (o *objects) apply(_ context.Context, a Attempt) (string, error) {
	files, err := Files(o.dir)
	if err != nil {
		return "", err
	}
	var found, gone []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		found = append(found, strings.Fields(string(content))...)
	}
	for _, name := range o.have {
		if !slices.Contains(found, name) {
			gone = append(gone, name)
		}
	}
	if len(gone) > 0 && !a.Deletions {
		return "", Deletes{gone}
	}
	o.have = found
	return "", nil
}

func (o *objects) write(name, content string) {
	o.t.Helper()
	if err := os.WriteFile(filepath.Join(o.dir, name), []byte(content), 0o600); err != nil {
		o.t.Fatal(err)
	}
}

func (o *objects) look() { o.f.attempt(o.t.Context(), false) }

func (o *objects) holds(want string) {
	o.t.Helper()
	if got := strings.Join(o.have, " "); got != want {
		o.t.Fatalf("holds %q, expected %q", got, want)
	}
}

// TestNotThereYetIsNoDeletion: objects are deleted only when the content stays unchanged, however
// the file looks meanwhile.
func TestNotThereYetIsNoDeletion(t *testing.T) {
	for name, change := range map[string]func(o *objects){
		"cut short":    func(o *objects) { o.write("a.yaml", "web\n") },
		"empty":        func(o *objects) { o.write("a.yaml", "") },
		"removed":      func(o *objects) { os.Remove(filepath.Join(o.dir, "a.yaml")) },
		"renamed away": func(o *objects) { os.Rename(filepath.Join(o.dir, "a.yaml"), filepath.Join(o.dir, "a.yaml~")) },
	} {
		t.Run(name, func(t *testing.T) {
			o := newObjects(t)
			change(o)
			o.look()
			o.clock.Advance(confirm - time.Millisecond)
			o.look()
			o.holds("web shop mail")
			// It returns, with more than before.
			o.write("a.yaml", "web\nshop\nnew\n")
			o.look()
			o.holds("web shop new mail")
			change(o)
			o.look()
			o.clock.Advance(confirm)
			o.look()
			if slices.Contains(o.have, "shop") || !slices.Contains(o.have, "mail") {
				t.Errorf("holds %q after it stayed so", o.have)
			}
		})
	}
}

// TestSlowWriter: content that keeps changing is not settled, nor is that of a file which a process
// has open for writing.
func TestSlowWriter(t *testing.T) {
	o := newObjects(t)
	f, err := os.OpenFile(filepath.Join(o.dir, "a.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		o.look()
		o.clock.Advance(10 * confirm)
		o.look()
		o.holds("web shop mail")
		if _, err := f.WriteString("web\n"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.WriteString("shop\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	o.look()
	o.holds("web web web shop mail")
	o.write("a.yaml", "web\n")
	for range 5 {
		o.look()
		o.clock.Advance(confirm / 2)
		o.write("a.yaml", "web\nx\n")
		o.look()
		o.clock.Advance(confirm / 2)
		o.write("a.yaml", "web\n")
	}
	if !slices.Contains(o.have, "shop") {
		t.Errorf("holds %q while the file went on changing", o.have)
	}
}

// TestWriterIsWaitedFor: content of a file that a process has open for writing is applied only
// after a while, because it may be partial. Then it is applied, because a process may keep it open
// without limit.
func TestWriterIsWaitedFor(t *testing.T) {
	o := newObjects(t)
	f, err := os.OpenFile(filepath.Join(o.dir, "a.yaml"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("new\n"); err != nil {
		t.Fatal(err)
	}
	o.look()
	o.clock.Advance(confirm - time.Millisecond)
	o.look()
	o.holds("web shop mail")
	o.clock.Advance(time.Millisecond)
	o.look()
	o.holds("web shop new mail")
	if _, err := f.WriteString("more\n"); err != nil {
		t.Fatal(err)
	}
	o.look()
	o.holds("web shop new mail")
	f.Close()
	o.look()
	o.holds("web shop new more mail")

	// Hours later another writer writes in two steps.
	o.clock.Advance(time.Hour)
	f, err = os.OpenFile(filepath.Join(o.dir, "a.yaml"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	o.look() // opened, and nothing written yet
	o.clock.Advance(confirm)
	if _, err := f.WriteString("ha"); err != nil {
		t.Fatal(err)
	}
	o.look()
	o.holds("web shop new more mail")
	if _, err := f.WriteString("lf\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	o.look()
	o.holds("web shop new more half mail")
}

// TestWriterThatChangesNothing: after a writer that reverted its change, the next one is waited for
// as long as the first.
func TestWriterThatChangesNothing(t *testing.T) {
	o := newObjects(t)
	path := filepath.Join(o.dir, "a.yaml")
	for _, write := range []struct{ part, rest, want string }{{"", "", "web shop mail"}, {"ha", "lf\n", "web shop half mail"}} {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(write.part + "x"); err != nil {
			t.Fatal(err)
		}
		o.look()
		o.holds("web shop mail")
		if err := f.Truncate(int64(len("web\nshop\n" + write.part))); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(write.rest); err != nil {
			t.Fatal(err)
		}
		f.Close()
		o.look()
		o.holds(write.want)
		o.clock.Advance(time.Hour)
	}
}

// TestWriterThatBeginsWithDeletions: the wait for a writer whose content deletes objects does not
// count for its next content.
func TestWriterThatBeginsWithDeletions(t *testing.T) {
	o := newObjects(t)
	f, err := os.OpenFile(filepath.Join(o.dir, "a.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		o.look()
		o.clock.Advance(confirm)
	}
	if _, err := f.WriteString("web\nshop\nha"); err != nil {
		t.Fatal(err)
	}
	o.look()
	o.holds("web shop mail")
	if _, err := f.WriteString("lf\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	o.look()
	o.holds("web shop half mail")
}
