package manager

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
)

const (
	// shareEvery is the interval at which a member checks whether it has more nodes than its share,
	// and moves some away.
	shareEvery = time.Second
	// shareQuiet is how long the members and the leader must have been unchanged, because a
	// restarted member returns and a new leader has other work.
	shareQuiet = 10 * time.Second
	// sharePart is the divisor of the surplus that moves at a time. At least one node moves.
	sharePart = 50
	// shareOnce is the minimum time between two moves of a node, because a node that returned was
	// not accepted elsewhere.
	shareOnce = 10 * time.Minute
	// shareAway is how long a moved node tries other members.
	shareAway = "10s"
)

// errSurplus ends the stream of a node that must move to another member.
var errSurplus = errors.New("this manager has more nodes than its share: others have fewer")

// elsewhere returns the error that ends a node's stream so that the node connects to another
// member.
func elsewhere() *connect.Error {
	err := connect.NewError(connect.CodeResourceExhausted, errSurplus)
	err.Meta().Set(headerRetryAfter, shareAway)
	return err
}

// sharing decides which nodes a member moves away. It has no lock and no clock.
type sharing struct {
	// members identifies the members that are up and the epoch, unchanged since the time since.
	members string
	since   time.Time
	// sent maps moved nodes to the time of the move.
	sent map[string]time.Time
}

// shareLimit returns the maximum number of nodes that a member keeps: its share and a quarter more,
// at least one more.
func shareLimit(nodes, members int) int {
	share := (nodes + members - 1) / members
	return share + max(1, share/4)
}

// surplus returns the nodes of here that must move now. members are the names of the members that
// are up. nodes is the number of all nodes in the cluster.
func (s *sharing) surplus(now time.Time, epoch int64, members []string, nodes int, here []string) []string {
	if is := fmt.Sprint(epoch, strings.Join(members, ",")); is != s.members {
		s.members, s.since = is, now
	}
	maps.DeleteFunc(s.sent, func(_ string, at time.Time) bool { return now.Sub(at) >= shareOnce })
	over := 0
	if len(members) > 0 {
		over = len(here) - shareLimit(nodes, len(members))
	}
	if over <= 0 || len(members) < 2 || now.Sub(s.since) < shareQuiet {
		return nil
	}
	here = slices.DeleteFunc(slices.Clone(here), func(name string) bool { return !s.sent[name].IsZero() })
	rand.Shuffle(len(here), func(i, j int) { here[i], here[j] = here[j], here[i] })
	here = here[:min(len(here), (over+sharePart-1)/sharePart)]
	for _, name := range here {
		if s.sent == nil {
			s.sent = map[string]time.Time{}
		}
		s.sent[name] = now
	}
	return here
}

// shareNodes moves nodes to other members, a few at a time, while this one has clearly more than
// its share. Nodes connect to the next member when theirs stops, and would otherwise all stay at
// the one that was restarted first.
func (m *Manager) shareNodes() {
	var s sharing
	for {
		select {
		case <-m.o.Clock.After(shareEvery/2 + rand.N(shareEvery)):
		case <-m.ctx.Done():
			return
		}
		l := m.view.leadership()
		members, nodes := m.view.membersAndNodes()
		if l.name == "" {
			members = nil
		}
		for _, name := range s.surplus(m.o.Clock.Now(), l.epoch, members, nodes, m.sessions.names()) {
			if node := m.sessions.here(name); node != nil {
				m.o.Log.Info("node is sent to another manager", "node", name)
				node.end(elsewhere())
			}
		}
	}
}

// membersAndNodes returns the members that are up, sorted, and the number of Node objects.
func (v *view) membersAndNodes() (members []string, nodes int) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.Sorted(maps.Keys(v.managers)), len(v.state.Nodes)
}

// names returns the nodes whose newest stream ends here.
func (ss *sessions) names() []string {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return slices.Sorted(maps.Keys(ss.byNode))
}
