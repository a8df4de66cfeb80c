package single

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
)

// bench follows a file and records every attempt.
type bench struct {
	t        *testing.T
	dir      string
	path     string
	reload   chan os.Signal
	attempts chan string
	// answer returns the manager's result for a content.
	answer func(content string) error
	// deletes, if not nil, reports whether a content deletes objects.
	deletes func(content string) bool
	clock   clock.Clock
	done    chan error
}

func follow(t *testing.T, name string, answer func(string) error) *bench {
	b := &bench{t: t, dir: t.TempDir(), reload: make(chan os.Signal, 1), attempts: make(chan string, 100), answer: answer, done: make(chan error, 1)}
	b.path = filepath.Join(b.dir, name)
	return b
}

func (b *bench) start() {
	ctx, cancel := context.WithCancel(b.t.Context())
	go func() {
		b.done <- Follow(ctx, Options{
			Path: b.path, Reload: b.reload, Clock: b.clock,
			Apply: func(_ context.Context, a Attempt) (string, error) {
				files, err := Files(b.path)
				if err != nil {
					return "", err
				}
				content := ""
				for _, file := range files {
					part, err := os.ReadFile(file)
					if err != nil {
						return "", err
					}
					content += string(part)
				}
				if b.deletes != nil && b.deletes(content) && !a.Deletions {
					return "", Deletes{[]string{"services/web"}}
				}
				return content, b.answer(content)
			},
			Told: func(summary string, err error) {
				if err != nil {
					summary += ": " + err.Error()
				}
				b.attempts <- summary
			},
		})
	}()
	b.t.Cleanup(func() {
		cancel()
		if err := <-b.done; err != nil {
			b.t.Error(err)
		}
	})
}

// next checks the outcome of the next attempt; a test without one fails by its time limit.
func (b *bench) next(want string) {
	b.t.Helper()
	got := <-b.attempts
	for got == "" { // read between the truncation of a file and the write
		got = <-b.attempts
	}
	if got != want {
		b.t.Fatalf("attempt told %q, want %q", got, want)
	}
}

func (b *bench) write(path, content string) {
	b.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func accept(string) error { return nil }

// TestFollowChanges: writing in place, replacing by rename and SIGHUP are all detected, and equal
// content is applied once.
func TestFollowChanges(t *testing.T) {
	b := follow(t, "shunt.yaml", accept)
	b.write(b.path, "one")
	b.start()
	b.next("one")
	b.write(b.path, "two")
	b.next("two")
	replace := func(content string) {
		t.Helper()
		b.write(filepath.Join(b.dir, "new"), content)
		if err := os.Rename(filepath.Join(b.dir, "new"), b.path); err != nil {
			t.Fatal(err)
		}
	}
	replace("three")
	b.next("three")
	replace("three") // the same content again
	b.reload <- syscall.SIGHUP
	b.next("three") // from the signal; a second one would be the next
	b.write(b.path, "four")
	b.next("four")
}

// TestFollowSymlink: configuration that is mounted through links to a directory that is replaced.
func TestFollowSymlink(t *testing.T) {
	b := follow(t, "shunt.yaml", accept)
	for _, v := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(b.dir, v), 0o700); err != nil {
			t.Fatal(err)
		}
		b.write(filepath.Join(b.dir, v, "shunt.yaml"), v)
	}
	link := func(to, name string) {
		t.Helper()
		if err := errors.Join(os.Symlink(to, filepath.Join(b.dir, "tmp")), os.Rename(filepath.Join(b.dir, "tmp"), filepath.Join(b.dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	link("v1", "data")
	link("data/shunt.yaml", "shunt.yaml")
	b.start()
	b.next("v1")
	link("v2", "data")
	b.next("v2")
}

// TestFollowLinkToElsewhere: the target of a link is edited in place, in a directory of its own.
func TestFollowLinkToElsewhere(t *testing.T) {
	b := follow(t, "shunt.yaml", accept)
	elsewhere := filepath.Join(t.TempDir(), "mine.yaml")
	b.write(elsewhere, "one")
	if err := os.Symlink(elsewhere, b.path); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.next("one")
	b.write(elsewhere, "two")
	b.next("two")
	other := filepath.Join(t.TempDir(), "other.yaml")
	b.write(other, "three")
	if err := errors.Join(os.Symlink(other, b.path+".new"), os.Rename(b.path+".new", b.path)); err != nil {
		t.Fatal(err)
	}
	b.next("three")
	b.write(other, "four")
	b.next("four")
}

// TestFollowReplacedDirectory: a directory that is replaced by rename, by removal or through its
// link is still followed.
func TestFollowReplacedDirectory(t *testing.T) {
	b := follow(t, "conf.d", accept)
	fill := func(dir, content string) string {
		t.Helper()
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		b.write(filepath.Join(dir, "a.yaml"), content)
		return dir
	}
	// until skips the outcomes of the time in which the directory does not exist.
	until := func(want string) {
		t.Helper()
		for got := range b.attempts {
			if got == want {
				return
			}
		}
	}
	fill(b.path, "one")
	b.start()
	b.next("one")
	if err := errors.Join(os.Rename(b.path, b.path+".old"), os.Rename(fill(b.path+".new", "two"), b.path)); err != nil {
		t.Fatal(err)
	}
	until("two")
	b.write(filepath.Join(b.path, "a.yaml"), "three")
	until("three")
	if err := os.RemoveAll(b.path); err != nil {
		t.Fatal(err)
	}
	fill(b.path, "four")
	until("four")
	b.write(filepath.Join(b.path, "a.yaml"), "five")
	until("five")
	if err := errors.Join(os.RemoveAll(b.path), os.Symlink(fill(filepath.Join(t.TempDir(), "x"), "six"), b.path)); err != nil {
		t.Fatal(err)
	}
	until("six")
	if err := errors.Join(os.Symlink(fill(filepath.Join(t.TempDir(), "y"), "seven"), b.path+".l"), os.Rename(b.path+".l", b.path)); err != nil {
		t.Fatal(err)
	}
	until("seven")
	b.write(filepath.Join(b.path, "a.yaml"), "eight")
	until("eight")
}

// TestFollowBusyDirectory: a change is detected although other files are written constantly.
func TestFollowBusyDirectory(t *testing.T) {
	b := follow(t, "shunt.yaml", accept)
	b.write(b.path, "one")
	b.start()
	b.next("one")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for tick := time.NewTicker(settle / 10); ; {
			select {
			case <-tick.C:
				os.WriteFile(filepath.Join(b.dir, "log"), []byte("line"), 0o600)
			case <-stop:
				return
			}
		}
	}()
	b.write(b.path, "two")
	b.next("two")
	close(stop)
	<-stopped
}

// TestFollowRefused: a refused content is reported once and not retried until the file changes.
func TestFollowRefused(t *testing.T) {
	b := follow(t, "shunt.yaml", func(content string) error {
		if content == "bad" {
			return errors.New("field: must be better")
		}
		return nil
	})
	b.write(b.path, "bad")
	b.start()
	b.next("bad: field: must be better")
	b.write(b.path, "good")
	b.next("good")
	if len(b.attempts) != 0 {
		t.Fatalf("more attempts: %q", <-b.attempts)
	}
}

// TestFollowTransient: a transient error is retried without a change of the file.
func TestFollowTransient(t *testing.T) {
	turns := 0
	b := follow(t, "shunt.yaml", func(string) error {
		if turns++; turns < 3 {
			return Transient{errors.New("nobody leads")}
		}
		return nil
	})
	b.write(b.path, "x")
	b.start()
	b.next("x: nobody leads")
	b.next("x: nobody leads")
	b.next("x")
}

// TestFollowMissing: the state stays when the file is removed, and its return is detected.
func TestFollowMissing(t *testing.T) {
	b := follow(t, "shunt.yaml", accept)
	b.write(b.path, "here")
	b.start()
	b.next("here")
	if err := os.Remove(b.path); err != nil {
		t.Fatal(err)
	}
	b.next(": read configuration: stat " + b.path + ": no such file or directory")
	b.write(b.path, "back")
	b.next("back")
}

// TestFollowDirectory: only YAML files are read, in the order of their names.
func TestFollowDirectory(t *testing.T) {
	b := follow(t, "", accept)
	b.path = b.dir
	b.write(filepath.Join(b.dir, "b.yml"), "B")
	b.write(filepath.Join(b.dir, "a.yaml"), "A")
	b.start()
	b.next("AB")
	b.write(filepath.Join(b.dir, "note.txt"), "not ours")
	b.write(filepath.Join(b.dir, "c.yaml"), "C")
	for {
		got := <-b.attempts
		if got == "ABC" {
			break
		}
		if got != "AB" { // c.yaml exists, and is still empty
			t.Fatalf("attempt told %q, want ABC", got)
		}
	}
	if _, err := Files(t.TempDir()); err == nil {
		t.Error("a directory without YAML is no configuration")
	}
	files, err := Files(b.dir)
	if err != nil || !slices.IsSorted(files) || len(files) != 3 {
		t.Errorf("files %q, %v", files, err)
	}
}

// TestFollowNowhere: a missing directory cannot be watched.
func TestFollowNowhere(t *testing.T) {
	err := Follow(t.Context(), Options{Path: filepath.Join(t.TempDir(), "no", "shunt.yaml"), Apply: func(context.Context, Attempt) (string, error) { return "", nil }})
	if err == nil {
		t.Fatal("followed what is not there")
	}
}

// TestFollowStops: the end of the context stops it, also while a retry is pending.
func TestFollowStops(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	path := filepath.Join(t.TempDir(), "shunt.yaml")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Follow(ctx, Options{Path: path, Apply: func(context.Context, Attempt) (string, error) { cancel(); return "", Transient{errors.New("x")} }})
	if err != nil || !errors.Is(ctx.Err(), context.Canceled) {
		t.Fatalf("ended with %v, context %v", err, ctx.Err())
	}
}
