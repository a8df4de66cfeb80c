package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lock"
	"github.com/shuntlb/shunt/internal/socket"
)

// Names in the run directory.
const (
	socketName = "speaker.sock"
	lockName   = "speaker.lock"
)

// Fields of requests, in their URLs: numbers from a previous response.
const (
	generationField = "generation"
	routesField     = "routes"
)

// A single check of the data plane may fail for other reasons: the pin is being replaced, or memory
// or file descriptors are short for a moment. Withdrawing all routes for that would cost more than
// a late withdrawal, so that it takes missedLooks failed checks in a row. The withdrawal begins at
// most missedLooks*heartbeatInterval, 150 ms, after the program was gone. With the 120 ms that it
// takes to reach a router's tables, it ends before BFD (300 ms) would detect the loss of a whole
// mux.
const (
	// heartbeatInterval is the interval of the checks of the data plane.
	heartbeatInterval = 50 * time.Millisecond
	missedLooks       = 3
)

// maxMessage bounds a state: 65,536 routes of about 100 bytes.
const maxMessage = 16 << 20

// ServerOptions configures a speaker process.
type ServerOptions struct {
	// RunDir holds the socket and the lock; it is created with mode 0700.
	RunDir string
	// Hold is how long routes outlive the agent.
	Hold time.Duration
	// Attached reports whether the data plane forwards.
	Attached func() (bool, error)
	Speaker  bgp.Speaker
	Clock    clock.Clock
	Log      *slog.Logger
	// Version and Commit of the program are reported to agents.
	Version, Commit string
}

// server is a running speaker process.
type server struct {
	ServerOptions
	stop context.CancelFunc
	// nonce distinguishes this process's numbers from those of others.
	nonce uint64
	// fault is the error of the last check of the data plane, so that it is logged once.
	fault atomic.Pointer[string]

	mu     sync.Mutex
	keeper *Keeper
	// missed counts the failed checks of the data plane since the last good one.
	missed int
	// said identifies the state that the speaker was last given; saidOK: Set succeeded. says counts
	// the states given: routes with an equal count are equal.
	said   announcement
	saidOK bool
	says   uint64
	why    string
}

// answer is the response to an agent.
type answer struct {
	Version string     `json:"version"`
	Commit  string     `json:"commit,omitempty"`
	PID     int        `json:"pid"`
	Status  bgp.Status `json:"status"`
	// Generation identifies the wanted state (Keeper.Alive), Routes the announced routes. Both are
	// valid for this process only. A process of an earlier build has neither.
	Generation uint64 `json:"generation,omitempty"`
	Routes     uint64 `json:"routes,omitempty"`
	// SameRoutes: the routes are those that the request identified. Status has none then.
	SameRoutes bool `json:"sameRoutes,omitempty"`
	// Error is the speaker's error.
	Error string `json:"error,omitempty"`
}

// Serve runs a speaker process until ctx ends or an agent stops it. Then it closes the sessions,
// which withdraws all routes. A run directory can have only one server.
func Serve(ctx context.Context, o ServerOptions) error {
	if err := os.MkdirAll(o.RunDir, 0o700); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	own, err := lock.Take(filepath.Join(o.RunDir, lockName))
	if err != nil {
		return fmt.Errorf("another speaker runs here: %w", err)
	}
	defer own.Close()
	listener, err := socket.Listen(socket.Options{Path: filepath.Join(o.RunDir, socketName), Mode: 0o600, Directory: 0o700})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s := &server{ServerOptions: o, stop: stop, nonce: rand.Uint64(), keeper: NewKeeper(o.Hold)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/set", s.set)
	mux.HandleFunc("POST /v1/alive", s.alive)
	mux.HandleFunc("GET /v1/status", s.status)
	mux.HandleFunc("POST /v1/stop", func(http.ResponseWriter, *http.Request) { stop() })
	h := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = h.Serve(listener) }()
	// Restore the run directory, because an agent that starts finds its speaker by it.
	go listener.Keep(ctx, clock.System{}, o.Log, func() (bool, error) {
		restored, err := own.Tend()
		if errors.Is(err, lock.ErrTaken) {
			o.Log.Warn("another speaker has taken the run directory, this one ends", "error", err)
			stop()
		}
		return restored, err
	})
	s.beat(ctx)
	err = o.Speaker.Close()
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return errors.Join(err, h.Shutdown(shutdown))
}

// beat checks heartbeat and hold time until ctx ends.
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

// lookedLocked records the result of a check of the data plane.
func (s *server) lookedLocked(attached bool) {
	if s.missed++; attached {
		s.missed = 0
	}
	if attached || s.missed >= missedLooks {
		s.keeper.Heartbeat(attached)
	}
}

// attached checks the data plane; a failed check counts as not attached.
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

// sayLocked passes the keeper's decision to the speaker; a failed call is repeated at the next
// beat.
func (s *server) sayLocked(ctx context.Context) error {
	now := s.Clock.Now()
	want, name := s.keeper.Announce(now)
	if why := s.keeper.Why(now); why != s.why {
		s.Log.Info("bgp routes", "announced", len(want.Routes), "withheld because", why)
		s.why = why
	}
	if s.saidOK && name == s.said {
		return nil
	}
	err := s.Speaker.Set(ctx, want)
	s.said, s.saidOK = name, err == nil
	s.says++
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
	s.take(w, r, func(now time.Time) bool {
		s.keeper.Set(now, want)
		return true
	})
}

// alive handles a sign of life. It responds with 409 if the agent must send its state.
func (s *server) alive(w http.ResponseWriter, r *http.Request) {
	generation, err := numberOf(r, generationField)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.take(w, r, func(now time.Time) bool { return s.keeper.Alive(now, s.own(generation)) })
}

// take passes an agent's request to the keeper, and announces its decision.
func (s *server) take(w http.ResponseWriter, r *http.Request, give func(now time.Time) bool) {
	// Check now, because an agent that has just attached the program must not wait for the next
	// beat.
	attached := s.attached()
	s.mu.Lock()
	defer s.mu.Unlock()
	if attached {
		s.lookedLocked(true)
	}
	if !give(s.Clock.Now()) {
		http.Error(w, "the speaker has another state", http.StatusConflict)
		return
	}
	// The announcement must not end with the agent's request.
	s.replyLocked(w, r, s.sayLocked(context.WithoutCancel(r.Context())))
}

// own turns a count of this process into the number that agents receive, and back. Numbers of two
// processes differ, except with a probability of 2^-64.
func (s *server) own(n uint64) uint64 { return n ^ s.nonce }

// numberOf returns a number of a request; 0: there is none.
func numberOf(r *http.Request, field string) (uint64, error) {
	text := r.URL.Query().Get(field)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q: must be a number", field, text)
	}
	return n, nil
}

func (s *server) status(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replyLocked(w, r, nil)
}

func (s *server) replyLocked(w http.ResponseWriter, r *http.Request, failure error) {
	a := answer{Version: s.Version, Commit: s.Commit, PID: os.Getpid(), Generation: s.own(s.keeper.generation), Routes: s.own(s.says)}
	have, err := numberOf(r, routesField)
	if err == nil && have != 0 && have == a.Routes {
		a.SameRoutes = true
		a.Status.Peers, err = s.Speaker.Peers(r.Context())
	} else if err == nil {
		a.Status, err = s.Speaker.Status(r.Context())
	}
	a.Status.Withheld = s.keeper.Why(s.Clock.Now())
	if err := errors.Join(failure, err); err != nil {
		a.Error = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a)
}
