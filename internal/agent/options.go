package agent

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/plan"
)

// QuietFor is how long a quiet node leaves out reports that say nothing new.
const QuietFor = 5 * time.Second

// Options say who the node is and where its managers are. Name, Role, Manager and StateDir are required.
type Options struct {
	// Name is the node's name: the name of its Node object and of its certificate.
	Name string
	// Role is "mux" or "host".
	Role string
	// Manager is the addresses of managers, host:port, separated by commas, in any order: some of those there are. The
	// node learns the others from its plan, and comes back to these when it reaches none of those.
	Manager string
	// TokenFile holds a join token. It is read only while the node has no certificate of that token's manager.
	TokenFile string
	// StateDir keeps key, certificate, CA and the last good plan; it is created with mode 0700.
	StateDir string
	// Version is the program's version, reported to the manager.
	Version string
	// Commit is what the program was built from, reported to the manager; empty: not known.
	Commit string
	// Notify makes the loop report the status soon. Nil: only at every StatusInterval, and when another plan is obeyed.
	Notify <-chan struct{}
	// Heard, if not nil, takes what hosts say of the members that they check. Full verdicts come with each stream.
	Heard func(plan.Verdicts)
	// Verdicts, if not nil, is what this node's own checks come to: the manager hears of it.
	Verdicts Verdicts
	// Suspicion, if not nil, is the node's doubt about itself: while there is one, the manager is asked what others see.
	Suspicion Suspicion
	// Loads, if not nil, is what this node knows of the load of its members: the manager hears of it.
	Loads Loads
	// HeardLoads, if not nil, takes what hosts say of the load of their members, the newest of each.
	HeardLoads func([]load.Member)
	// Leases, if not nil, is the node's part in leasing ports for outbound connections.
	Leases Leases
	// StatusInterval is the time between reports; 0 means one second.
	StatusInterval time.Duration
	// Quiet leaves out reports that say the same as the last one, for at most QuietFor: for the many nodes of whose statuses nobody
	// expects one a second.
	Quiet bool
	// Progress, if not nil, tells others how the loop stands to the manager.
	Progress *Progress
	// Clock is the time source; nil is the machine's.
	Clock clock.Clock
	// Log receives what an operator should know; nil discards it.
	Log *slog.Logger
	// Dial opens connections to the manager; nil is net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}
