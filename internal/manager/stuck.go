package manager

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// DefaultNodeTimeout is well above the time that the largest snapshot takes on a slow link: 210 MB
// at 100 Mbit/s in 17 seconds.
const DefaultNodeTimeout = 30 * time.Second

const (
	// stuckEvery is the interval of the check for stuck streams.
	stuckEvery = time.Second
	// endedGrace is the time for a message that is being sent when its stream ends.
	endedGrace = time.Second
)

// errStuck ends a stream whose node does not read.
var errStuck = errors.New("the node does not read its stream")

// writing is the sending half of a stream. It exists for the goroutine that must end the stream,
// because a Send that waits for the node to read ignores every context.
type writing struct {
	mu sync.Mutex
	// response is nil if the stream has none, and after its handler is done, because then it must
	// not be touched.
	response *http.ResponseController
	// since is when the Send in progress began, or zero if there is none.
	since time.Time
}

// do runs send and records that it is in progress.
func (w *writing) do(now time.Time, send func() error) error {
	w.set(now)
	defer w.set(time.Time{})
	return send()
}

func (w *writing) set(since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = since
}

// close must be called before the stream's handler returns.
func (w *writing) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.response = nil
}

// under returns how long a Send has been in progress.
func (w *writing) under(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return 0
	}
	return now.Sub(w.since)
}

// abort makes the Send in progress fail. The deadline is in the past by any clock.
func (w *writing) abort() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.response != nil {
		// only connections of tests have no deadlines
		_ = w.response.SetWriteDeadline(time.Unix(1, 0))
	}
}

// endStuck ends streams whose nodes do not read, until the member stops.
func (m *Manager) endStuck() {
	for {
		select {
		case <-m.o.Clock.After(stuckEvery):
		case <-m.ctx.Done():
			return
		}
		now := m.o.Clock.Now()
		for _, s := range m.sessions.all() {
			under := s.writing.under(now)
			if s.ctx.Err() == nil && m.o.NodeTimeout > 0 && under > m.o.NodeTimeout {
				m.o.Log.Warn("node does not read its stream: it is ended", "node", s.name, "for", under.Round(time.Millisecond))
				s.end(errStuck)
				s.writing.abort()
			} else if s.ctx.Err() != nil && under > endedGrace {
				s.writing.abort()
			}
		}
	}
}

type responseKey struct{}

// withResponse makes the response available to the handler of a stream, so that it can abort a
// Send.
func withResponse(ctx context.Context, w http.ResponseWriter) context.Context {
	return context.WithValue(ctx, responseKey{}, http.NewResponseController(w))
}

func responseOf(ctx context.Context) *http.ResponseController {
	c, _ := ctx.Value(responseKey{}).(*http.ResponseController)
	return c
}
