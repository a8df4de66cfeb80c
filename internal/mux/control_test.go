package mux

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/lock"
)

func TestControlSocket(t *testing.T) {
	w := newWorld(t)
	// A unix socket's path has at most 107 bytes.
	dir, err := os.MkdirTemp("", "mux")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	w.run = dir
	w.restart()
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11"))
	w.probe("10.20.1.11", true, "connected")
	w.take()

	bg := context.Background()
	if err := Ask(bg, dir, "drain"); !errors.Is(err, ErrNoAgent) {
		t.Fatalf("without an agent: %v", err)
	}
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	served := make(chan error)
	stopped := false
	go func() {
		served <- w.agent.Control(ctx, func() error { stopped = true; return nil })
	}()
	ask := func(what string) error {
		t.Helper()
		done := make(chan error)
		go func() { done <- Ask(bg, dir, what) }()
		for {
			select {
			case err := <-done:
				return err
			default:
				if w.clock.Waiting() > 0 {
					w.clock.Advance(time.Second)
				}
				runtime.Gosched()
			}
		}
	}
	for errors.Is(ask("undrain"), ErrNoAgent) {
		runtime.Gosched() // the socket does not exist yet
	}
	if err := ask("drain"); err != nil {
		t.Fatal(err)
	}
	w.expect("drain waits", "routes [203.0.113.10 graceful]", "routes []")
	if err := ask("undrain"); err != nil {
		t.Fatal(err)
	}
	w.expect("undrain", "routes [203.0.113.10]")
	w.speaker.Fail(errors.New("no speaker"))
	if err := ask("stop"); err == nil || !strings.Contains(err.Error(), "no speaker") || stopped {
		t.Fatalf("stop with a dead speaker: %v, stopped %v", err, stopped)
	}
	w.speaker.Fail(nil)
	if err := ask("stop"); err != nil || !stopped {
		t.Fatalf("stop: %v, stopped %v", err, stopped)
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	if routes := w.speaker.State().Routes; len(routes) != 0 {
		t.Errorf("announced %v", routes)
	}
}

func TestRunDirectoryIsForOneAgent(t *testing.T) {
	dir := t.TempDir()
	own, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "another mux agent runs with this run directory") {
		t.Errorf("got %v", err)
	}
	own.Close()
	if own, err = Lock(dir); err != nil {
		t.Fatal(err)
	}
	own.Close()
}

// TestRunDirectoryIsKept: after the run directory is removed, a running agent still answers
// requests, excludes a second agent, and leaves its local drain and its decisions to the next one.
func TestRunDirectoryIsKept(t *testing.T) {
	w := newWorld(t)
	dir, err := os.MkdirTemp("", "mux")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	w.run = dir
	own, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	w.restart()
	w.agent.o.Locks = []*lock.File{own}
	w.apply(planOf([]string{"203.0.113.10"}, "10.20.1.11"))
	key := lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}
	decided := mark{Decision: health.Decision{Backup: true}}
	w.agent.mu.Lock()
	w.agent.marks.put(key, decided)
	err = w.agent.marks.flush()
	w.agent.drain.local = true
	w.agent.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- w.agent.Control(ctx, func() error { return nil }) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	deadline, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	answers := func() {
		t.Helper()
		for {
			err := Ask(deadline, dir, "nothing")
			if err != nil && !errors.Is(err, ErrNoAgent) {
				return // the agent serves no such path, but it answers
			}
			if deadline.Err() != nil {
				t.Fatalf("the agent cannot be asked: %v", err)
			}
			runtime.Gosched()
		}
	}
	answers()
	for range 2 {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		answers()
		if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "another mux agent runs with this run directory") {
			t.Errorf("a second agent: %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, drainFile)); err != nil {
			t.Errorf("the next agent would not be drained: %v", err)
		}
		left, err := openMarks(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := left.read(key); !reflect.DeepEqual(got, decided) {
			t.Errorf("the next agent would have the decision %+v, want %+v", got, decided)
		}
	}
}

// TestDrainWithoutAPlan: an agent without a plan cannot withdraw the routes of a previous one, and
// reports that.
func TestDrainWithoutAPlan(t *testing.T) {
	w := newWorld(t)
	p := planOf([]string{"203.0.113.10"}, "10.20.1.11")
	w.apply(p)
	w.probe("10.20.1.11", true, "connected")
	w.agent.Speak(t.Context())
	w.restart()
	if err := w.agent.strayRoutes(t.Context()); err == nil || !strings.Contains(err.Error(), "announced, 1 in all") {
		t.Errorf("got %v", err)
	}
	w.apply(p)
	if err := w.agent.strayRoutes(t.Context()); err != nil {
		t.Errorf("with a plan: %v", err)
	}
}
