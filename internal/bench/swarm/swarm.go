// Package swarm runs many simulated nodes in one process: the real agent with a data plane that
// only counts.
package swarm

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// Name returns the name of a node of the swarm.
func Name(i int) string { return fmt.Sprintf("node%05d", i) }

// StateDir returns the state directory of node i. Its certificate is put there before it starts.
func StateDir(dir string, i int) string { return filepath.Join(dir, Name(i)) }

// Swarm holds the nodes of one process.
type Swarm struct {
	manager, dir string
	log          *slog.Logger
	nodes        []*node
	attempts     attempts
	workers      sync.WaitGroup
	frozen       []io.Closer
	// counting means that the counters of every node change all the time.
	counting atomic.Bool
}

// node is one simulated node.
type node struct {
	name     string
	swarm    *Swarm
	progress agent.Progress
	stop     context.CancelFunc
	done     chan struct{}
	// applied is closed and replaced whenever a plan is applied.
	mu      sync.Mutex
	applied chan struct{}
	at      time.Time
	packets atomic.Uint64
	// seen is the revision at the last call of Updated.
	seen   int64
	frozen bool
}

// Apply implements agent.Handler.
func (n *node) Apply(context.Context, plan.Plan) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at = time.Now()
	close(n.applied)
	n.applied = make(chan struct{})
	return nil
}

// Status implements agent.Handler. It returns the status of a host with two servers that receive
// occasional packets.
func (n *node) Status() *apiv1.NodeStatus {
	if !n.swarm.counting.Load() {
		return &apiv1.NodeStatus{}
	}
	packets := n.packets.Add(7)
	st := &apiv1.NodeStatus{Reasons: []*apiv1.ReasonCount{{Reason: "not-for-us", Packets: packets / 100}}}
	for server := range 2 {
		st.Members = append(st.Members, &apiv1.MemberStatus{
			Service: n.name, Vip: "198.18.0.1", Protocol: "tcp", Port: 80, Dip: "10.0.0.10", DipPort: 8080, Member: uint32(server), Alive: true,
			Packets: packets, Bytes: 1000 * packets,
		})
	}
	return st
}

// Trace implements agent.Handler.
func (n *node) Trace(*apiv1.TraceRequest) *apiv1.TraceResult {
	return &apiv1.TraceResult{Error: "is simulated"}
}

// Flows implements agent.Handler.
func (n *node) Flows(context.Context, *apiv1.FlowsRequest) *apiv1.FlowsResult {
	return &apiv1.FlowsResult{Error: "is simulated"}
}

// Health implements agent.Handler.
func (n *node) Health(*apiv1.HealthQuestion) *apiv1.HealthResult {
	return &apiv1.HealthResult{}
}

// Start starts count nodes of a manager together.
func Start(ctx context.Context, manager, dir string, count int, log *slog.Logger) *Swarm {
	s := &Swarm{manager: manager, dir: dir, log: log}
	for i := range count {
		n := &node{name: Name(i), swarm: s, applied: make(chan struct{}), done: make(chan struct{})}
		s.nodes = append(s.nodes, n)
		var nctx context.Context
		nctx, n.stop = context.WithCancel(ctx)
		s.workers.Go(func() {
			defer close(n.done)
			err := agent.Run(nctx, agent.Options{
				Name: n.name, Role: string(lb.RoleHost), Manager: manager, StateDir: StateDir(dir, i), Version: "swarm", Quiet: true,
				Progress: &n.progress, Dial: s.dial, Log: log,
			}, n)
			if err != nil {
				log.Error("node ended", "node", n.name, "error", err)
			}
		})
	}
	return s
}

// Close stops all nodes.
func (s *Swarm) Close() {
	for _, n := range s.nodes {
		n.stop()
	}
	for _, c := range s.frozen {
		c.Close()
	}
	s.workers.Wait()
}

func (s *Swarm) dial(ctx context.Context, network, address string) (net.Conn, error) {
	s.attempts.note(time.Now())
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// syncedEvery is the poll interval of the nodes.
const syncedEvery = 5 * time.Millisecond

// Synced waits until every reading node has applied the newest plan of an epoch or a later one.
// peak is the most connection attempts within one second since the last call.
func (s *Swarm) Synced(ctx context.Context, epoch int64) (at time.Time, peak int, err error) {
	left := s.reading()
	for {
		behind := left[:0]
		for _, n := range left {
			if st := n.progress.State(); !st.Connected || st.Applied == 0 || st.Applied != st.Wanted || st.Epoch < epoch || st.Fault != "" {
				behind = append(behind, n)
			}
		}
		if left = behind; len(left) == 0 {
			at = time.Now()
			s.Updated()
			return at, s.attempts.peak(), nil
		}
		select {
		case <-time.After(syncedEvery):
		case <-ctx.Done():
			return at, 0, fmt.Errorf("%d nodes are not synced, %s is at %+v: %w", len(left), left[0].name, left[0].progress.State(), context.Cause(ctx))
		}
	}
}

func (s *Swarm) reading() []*node {
	var out []*node
	for _, n := range s.nodes {
		if !n.frozen {
			out = append(out, n)
		}
	}
	return out
}

// Applied returns a function that waits until a node applies a plan after the call of Applied, and
// returns when it did.
func (s *Swarm) Applied(i int) func(ctx context.Context) (time.Time, error) {
	n := s.nodes[i]
	n.mu.Lock()
	applied := n.applied
	n.mu.Unlock()
	return func(ctx context.Context) (time.Time, error) {
		select {
		case <-applied:
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.at, nil
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%s got nothing: %w", n.name, context.Cause(ctx))
		}
	}
}

// Updated returns the nodes that received a new revision since the last call.
func (s *Swarm) Updated() []int {
	var out []int
	for i, n := range s.nodes {
		if now := n.progress.State().Wanted; now != n.seen && !n.frozen {
			n.seen = now
			out = append(out, i)
		}
	}
	return out
}

// attempts counts connection attempts by second.
type attempts struct {
	mu       sync.Mutex
	bySecond map[int64]int
}

func (a *attempts) note(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bySecond == nil {
		a.bySecond = map[int64]int{}
	}
	a.bySecond[now.Unix()]++
}

// peak returns the most attempts of one second since the last call.
func (a *attempts) peak() (most int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.bySecond {
		most = max(most, n)
	}
	a.bySecond = nil
	return most
}

// credentialsOf reads the agent's credentials.
func (s *Swarm) credentialsOf(i int) ([]byte, error) {
	return os.ReadFile(filepath.Join(StateDir(s.dir, i), CredentialsFile))
}
