package mux

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
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
		runtime.Gosched() // the socket is not there yet
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
	unlock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "another mux agent runs with this run directory") {
		t.Errorf("got %v", err)
	}
	unlock()
	if unlock, err = Lock(dir); err != nil {
		t.Fatal(err)
	}
	unlock()
}

// TestDrainWithoutAPlan: an agent that has none cannot withdraw what the one before it announced, and says so.
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
