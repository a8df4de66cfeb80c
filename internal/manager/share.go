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
	// shareEvery is how often a member looks whether it has more nodes than its share, and sends some away.
	shareEvery = time.Second
	// shareQuiet is how long the members and the leader must have been the same before: who restarts comes back, and who takes
	// over has other work.
	shareQuiet = 10 * time.Second
	// sharePart of the surplus goes at a time, at least one node.
	sharePart = 50
	// shareOnce: a node that came back was not well received elsewhere.
	shareOnce = 10 * time.Minute
	// shareAway is how long a node that was sent away tries others.
	shareAway = "10s"
)

// errSurplus sends a node away.
var errSurplus = errors.New("this manager has more nodes than its share: others have fewer")

// elsewhere ends a node's stream so that it goes to another member.
func elsewhere() *connect.Error {
	err := connect.NewError(connect.CodeResourceExhausted, errSurplus)
	err.Meta().Set(headerRetryAfter, shareAway)
	return err
}

// sharing decides which nodes a member sends away. It has no lock and no clock.
type sharing struct {
	// members are those that were up, and the epoch, since a time.
	members string
	since   time.Time
	// sent is when nodes were sent away.
	sent map[string]time.Time
}

// shareLimit is the most nodes that a member keeps of so many: a quarter more than its share, and one more at least.
func shareLimit(nodes, members int) int {
	share := (nodes + members - 1) / members
	return share + max(1, share/4)
}

// surplus are those of the nodes here that are to go now. members are the names of those that are up, nodes is the number of all
// nodes of the cluster.
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

// shareNodes sends nodes to other members, a few at a time, as long as this one has clearly more than its share: nodes go to the
// next member when theirs ends, and would all stay at the one that was restarted first.
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

// membersAndNodes are the members that are up, ordered, and the number of Node objects.
func (v *view) membersAndNodes() (members []string, nodes int) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.Sorted(maps.Keys(v.managers)), len(v.state.Nodes)
}

// names are the nodes whose newest stream ends here.
func (ss *sessions) names() []string {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return slices.Sorted(maps.Keys(ss.byNode))
}
