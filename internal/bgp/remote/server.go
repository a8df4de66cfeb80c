package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/clock"
)

// Names in the run directory.
const (
	socketName = "speaker.sock"
	lockName   = "speaker.lock"
)

// A single look at the data plane may fail for reasons of its own: the pin is being replaced, memory or file
// descriptors are short for a moment. Withdrawing all routes for that would cost more than a late withdrawal, so that
// it takes missedLooks failed looks in a row: it begins at most missedLooks*heartbeatInterval, 150 ms, after the program
// was gone, and with the 120 ms that a withdrawal takes to a router's tables it ends before BFD (300 ms) would find the
// loss of a whole mux.
const (
	// heartbeatInterval is how often the data plane is looked at.
	heartbeatInterval = 50 * time.Millisecond
	missedLooks       = 3
)

// maxMessage bounds a state: 65,536 routes of about 100 bytes.
const maxMessage = 16 << 20

// ServerOptions are what a speaker process needs.
type ServerOptions struct {
	// RunDir holds the socket and the lock; made with mode 0700.
	RunDir string
	// Hold is how long routes outlive the agent.
	Hold time.Duration
	// Attached tells whether the data plane forwards.
	Attached func() (bool, error)
	Speaker  bgp.Speaker
	Clock    clock.Clock
	Log      *slog.Logger
	// Version is told to agents.
	Version string
}

// server is a running speaker process.
type server struct {
	ServerOptions
	stop context.CancelFunc
	// fault of the last look at the data plane, so that it is told once.
	fault atomic.Pointer[string]

	mu     sync.Mutex
	keeper *Keeper
	// missed are the failed looks at the data plane since the last good one.
	missed int
	// said is what the speaker was last made to say, if that worked.
	said   bgp.State
	saidOK bool
	why    string
}

// answer is what an agent gets back.
type answer struct {
	Version string     `json:"version"`
	PID     int        `json:"pid"`
	Status  bgp.Status `json:"status"`
	// Error of the speaker, in words.
	Error string `json:"error,omitempty"`
}

// Serve runs a speaker process until ctx ends or an agent stops it; the sessions are then closed, which withdraws
// all routes. Two servers of one run directory cannot be.
func Serve(ctx context.Context, o ServerOptions) error {
	if err := os.MkdirAll(o.RunDir, 0o700); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	unlock, err := lock(filepath.Join(o.RunDir, lockName))
	if err != nil {
		return err
	}
	defer unlock()
	listener, err := listen(filepath.Join(o.RunDir, socketName))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s := &server{ServerOptions: o, stop: stop, keeper: NewKeeper(o.Hold)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/set", s.set)
	mux.HandleFunc("GET /v1/status", s.status)
	mux.HandleFunc("POST /v1/stop", func(http.ResponseWriter, *http.Request) { stop() })
	h := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = h.Serve(listener) }()
	s.beat(ctx)
	err = o.Speaker.Close()
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return errors.Join(err, h.Shutdown(shutdown))
}

// beat watches heartbeat and hold time until ctx ends.
func (s *server) beat(ctx context.Context) {
	for {
		attached := s.attached()
		s.mu.Lock()
		s.lookedLocked(attached)
		sayErr := s.sayLocked(ctx)
		s.mu.Unlock()
		if sayErr != nil {
			s.Log.Warn("speak bgp", "error", sayErr)
		}
		select {
		case <-s.Clock.After(heartbeatInterval):
		case <-ctx.Done():
			return
		}
	}
}

// lookedLocked takes the result of a look at the data plane.
func (s *server) lookedLocked(attached bool) {
	if s.missed++; attached {
		s.missed = 0
	}
	if attached || s.missed >= missedLooks {
		s.keeper.Heartbeat(attached)
	}
}

// attached looks at the data plane; one that cannot be looked at does not count as attached.
func (s *server) attached() bool {
	attached, err := s.Attached()
	fault := ""
	if err != nil {
		fault = err.Error()
	}
	if before := s.fault.Swap(&fault); fault != "" && (before == nil || *before != fault) {
		s.Log.Error("look at the data plane", "error", err)
	}
	return attached && err == nil
}

// sayLocked makes the speaker say what the keeper decided; a failed try is repeated at the next beat.
func (s *server) sayLocked(ctx context.Context) error {
	now := s.Clock.Now()
	want := s.keeper.Announce(now)
	if why := s.keeper.Why(now); why != s.why {
		s.Log.Info("bgp routes", "announced", len(want.Routes), "withheld because", why)
		s.why = why
	}
	if s.saidOK && want.Equal(s.said) {
		return nil
	}
	err := s.Speaker.Set(ctx, want)
	s.said, s.saidOK = want, err == nil
	return err
}

func (s *server) set(w http.ResponseWriter, r *http.Request) {
	var want bgp.State
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMessage)).Decode(&want); err != nil {
		http.Error(w, fmt.Sprintf("read state: %v", err), http.StatusBadRequest)
		return
	}
	if err := want.Validate(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// An agent that has just attached the program must not wait for the next beat.
	attached := s.attached()
	s.mu.Lock()
	defer s.mu.Unlock()
	if attached {
		s.lookedLocked(true)
	}
	s.keeper.Set(s.Clock.Now(), want)
	// The routes must not depend on the agent's patience.
	s.replyLocked(w, r, s.sayLocked(context.WithoutCancel(r.Context())))
}

func (s *server) status(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replyLocked(w, r, nil)
}

func (s *server) replyLocked(w http.ResponseWriter, r *http.Request, failure error) {
	a := answer{Version: s.Version, PID: os.Getpid()}
	status, err := s.Speaker.Status(r.Context())
	a.Status = status
	a.Status.Withheld = s.keeper.Why(s.Clock.Now())
	if err := errors.Join(failure, err); err != nil {
		a.Error = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a)
}

// lock takes the lock file; it is released by the kernel when the process ends.
func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: another speaker runs here: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// listen opens the socket; the lock is held, so that a socket which is there is a dead one.
func listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("protect socket: %w", err)
	}
	return l, nil
}
