package manager

import (
	"fmt"
	"sync"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/pki"
)

// Limits of the streams of users and programs that a manager serves concurrently. Each costs 30 kB,
// and 100 bytes for each changed object that its reader has not taken: 2,200 of them are 66 MB.
// Streams of nodes and managers are not counted.
const (
	// callerStreams is the limit per caller: a dashboard on each of a department's screens may
	// share its token.
	callerStreams = 200
	// allStreams is the limit of all callers together.
	allStreams = 2000
	// adminStreams is the number of additional streams reserved for admins, who can fix an
	// overload.
	adminStreams = 200
)

// streamed lists the procedures whose calls last as long as their caller wants.
var streamed = map[string]bool{
	shuntv1connect.ManagerWatchProcedure:  true,
	shuntv1connect.ManagerEventsProcedure: true,
}

// streams counts the open streams.
type streams struct {
	mu      sync.Mutex
	callers map[streamer]int // never 0
	all     int
}

// streamer identifies one caller, whichever certificate or token it uses.
type streamer struct{ role, tenant, who string }

func newStreams() *streams { return &streams{callers: map[streamer]int{}} }

// enter begins a stream of a caller, which leave ends, or returns an error if there are too many.
func (s *streams) enter(id identity) (leave func(), err *connect.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	who, most := streamer{id.role, id.tenant, id.who()}, allStreams
	if id.role == pki.RoleAdmin {
		most += adminStreams
	}
	switch {
	case s.callers[who] >= callerStreams:
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%s: too many streams at once: must be at most %d", who.who, callerStreams))
	case s.all >= most:
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("too many streams at once of all callers: must be at most %d at a manager", most))
	}
	s.callers[who]++
	s.all++
	return sync.OnceFunc(func() { s.leave(who) }), nil
}

func (s *streams) leave(who streamer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.callers[who]--; s.callers[who] == 0 {
		delete(s.callers, who)
	}
}
