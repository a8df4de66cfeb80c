package mux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/socket"
)

// controlSocket is the agent's socket in the run directory.
const controlSocket = "agent.sock"

// SetDrain begins or ends a local drain. The drain lasts until the next boot.
func (a *Agent) SetDrain(on bool) error {
	path := filepath.Join(a.o.RunDir, drainFile)
	if on {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return fmt.Errorf("remember drain: %w", err)
		}
	} else if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget drain: %w", err)
	}
	a.mu.Lock()
	a.drain.set(a.o.Clock.Now(), func(d *drain) { d.local = on })
	a.mu.Unlock()
	a.Speak(context.Background())
	return nil
}

// Leave drains the mux for good and returns when the routes are withdrawn.
func (a *Agent) Leave(ctx context.Context) error {
	a.mu.Lock()
	a.drain.set(a.o.Clock.Now(), func(d *drain) { d.last = true })
	a.mu.Unlock()
	if err := a.awaitGone(ctx); err != nil {
		return err
	}
	a.tending.Lock()
	defer a.tending.Unlock()
	a.speaking.Lock()
	defer a.speaking.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = true
	return nil
}

// awaitGone synchronizes the speaker until no route is announced.
func (a *Agent) awaitGone(ctx context.Context) error {
	for {
		a.Speak(ctx)
		a.mu.Lock()
		phase := a.drain.phase(a.o.Clock.Now(), a.o.DrainWait)
		routes, fault, ready := len(a.status.Routes), a.speakerFault, a.ready
		left := a.drain.since.Add(a.o.DrainWait).Sub(a.o.Clock.Now())
		a.mu.Unlock()
		switch {
		case phase == serving:
			return errors.New("drain: undone meanwhile")
		case phase == gone && fault != nil:
			return fmt.Errorf("drain: %w", fault)
		case phase == gone && (routes == 0 || !ready):
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain: %w", ctx.Err())
		case <-a.o.Clock.After(max(left, 10*time.Millisecond)):
		}
	}
}

// strayRoutes returns an error if routes of a previous agent are announced and this one has no plan
// yet: the agent cannot withdraw them, so the mux is not drained.
func (a *Agent) strayRoutes(ctx context.Context) error {
	if a.Served() {
		return nil
	}
	status, err := a.o.Speaker.Status(ctx)
	if err != nil || len(status.Routes) == 0 {
		return nil // no speaker runs, or it announces nothing
	}
	return fmt.Errorf("drain: the agent has no plan yet, and routes of the agent before it are announced, %d in all: they are withdrawn with its first plan, or now by --stop", len(status.Routes))
}

// Control serves the agent's socket and maintains the run directory until ctx ends or a stop
// request succeeds. The caller must hold the lock of the run directory. A stop request calls stop,
// which takes everything down, after the routes are withdrawn; the client has its response when
// Control returns.
func (a *Agent) Control(ctx context.Context, stop func() error) error {
	listener, err := socket.Listen(socket.Options{Path: filepath.Join(a.o.RunDir, controlSocket), Mode: 0o600, Directory: 0o700})
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	ctx, stopped := context.WithCancel(ctx)
	defer stopped()
	go listener.Keep(ctx, clock.System{}, a.o.Log, a.runDirKeepers()...)
	routes := http.NewServeMux()
	reply := func(f func(*http.Request) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if err := f(r); err != nil {
				http.Error(w, err.Error(), http.StatusConflict)
			}
		}
	}
	routes.HandleFunc("POST /v1/drain", reply(func(r *http.Request) error {
		if err := a.SetDrain(true); err != nil {
			return err
		}
		if err := a.awaitGone(r.Context()); err != nil {
			return err
		}
		return a.strayRoutes(r.Context())
	}))
	routes.HandleFunc("POST /v1/undrain", reply(func(*http.Request) error { return a.SetDrain(false) }))
	routes.HandleFunc("POST /v1/stop", reply(func(r *http.Request) error {
		if err := a.Leave(r.Context()); err != nil {
			return err
		}
		if err := stop(); err != nil {
			return err
		}
		stopped()
		return nil
	}))
	routes.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(a.Status())
	})
	routes.HandleFunc("GET /v1/capture", func(w http.ResponseWriter, r *http.Request) { a.serveCapture(ctx, w, r) })
	server := &http.Server{Handler: routes, ReadHeaderTimeout: 5 * time.Second}
	shut := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(shut)
		// Requests in flight get up to a second to finish.
		grace, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = server.Shutdown(grace)
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve control socket: %w", err)
	}
	<-shut
	return nil
}

// ErrNoAgent reports that no agent listens in the run directory.
var ErrNoAgent = errors.New("no agent is running")

// controlClient returns an HTTP client for the agent of a run directory.
func controlClient(runDir string) *http.Client {
	path := filepath.Join(runDir, controlSocket)
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
			if err != nil {
				return nil, fmt.Errorf("%w with run directory %s: %v", ErrNoAgent, runDir, err)
			}
			return conn, nil
		},
	}}
}

// Ask sends a request ("drain", "undrain" or "stop") to the agent of a run directory and waits
// until it is done.
func Ask(ctx context.Context, runDir, what string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/v1/"+what, nil)
	if err != nil {
		return err
	}
	resp, err := controlClient(runDir).Do(req)
	if errors.Is(err, ErrNoAgent) {
		return fmt.Errorf("%w with run directory %s", ErrNoAgent, runDir)
	}
	if err != nil {
		return fmt.Errorf("ask the agent to %s: %w", what, err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(text)))
	}
	return nil
}
