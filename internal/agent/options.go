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

// QuietFor is how long a quiet node omits reports that are unchanged.
const QuietFor = 5 * time.Second

// Options identify the node and its managers. Name, Role, Manager and StateDir are required.
type Options struct {
	// Name is the node's name: the name of its Node object and of its certificate.
	Name string
	// Role is "mux" or "host".
	Role string
	// Manager is a list of managers' addresses, host:port, separated by commas, in any order, and
	// may be incomplete. The node learns the others from its plan, and returns to these if it
	// reaches none of those.
	Manager string
	// TokenFile holds a join token. It is used while the node has no certificate of that token's
	// cluster, and after a manager refused the certificate.
	TokenFile string
	// StateDir keeps key, certificate, CA and the last good plan; it is created with mode 0700.
	StateDir string
	// Version is the program's version, reported to the manager.
	Version string
	// Commit is the commit that the program was built from, reported to the manager; empty: not
	// known.
	Commit string
	// Notify triggers a status report. Nil: the status is reported only every StatusInterval, and
	// after another plan was applied.
	Notify <-chan struct{}
	// Heard, if not nil, receives the hosts' reports on the members that they check. Each stream
	// begins with a full report.
	Heard func(plan.Verdicts)
	// Verdicts, if not nil, provides the results of this node's own checks for the manager.
	Verdicts Verdicts
	// Suspicion, if not nil, detects isolation of the node. During isolation the node requests the
	// reports of others from the manager.
	Suspicion Suspicion
	// Loads, if not nil, provides the load of this node's members for the manager.
	Loads Loads
	// HeardLoads, if not nil, receives the newest loads that hosts report for their members.
	HeardLoads func([]load.Member)
	// Leases, if not nil, is the node's part in leasing ports for outbound connections.
	Leases Leases
	// StatusInterval is the time between reports; 0 means one second.
	StatusInterval time.Duration
	// Quiet omits reports that equal the last one, for at most QuietFor. It is for large numbers of
	// nodes that need not report every second.
	Quiet bool
	// Progress, if not nil, exposes the loop's state.
	Progress *Progress
	// Clock is the time source; nil is the machine's.
	Clock clock.Clock
	// Log receives messages for operators; nil discards them.
	Log *slog.Logger
	// Dial opens connections to the manager; nil is net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}
