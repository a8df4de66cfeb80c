package lab_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
)

// repaired is a service with affinity hash and one change of its backends. Muxes hold no flow
// entries of its connections.
type repaired struct {
	service
	change func(s *service)
	// alive is how many members are alive after the change.
	alive int
	// forgets means that connections of slots that move are lost, because hosts do not repair.
	forgets bool
}

// everyVM lists the servers of the shared lab.
var everyVM = []string{"host1-vm1", "host1-vm2", "host2-vm1", "host2-vm2", "host3-vm1", "host3-vm2"}

// hashed returns an echo service without flow state.
func hashed(name string, number int, encap string, backends []string) service {
	return service{name: name, number: number, protocol: "tcp", port: 7, dipPort: 7, encap: encap, backends: backends, more: "  affinity: hash\n"}
}

// One change of an endpoint's backends breaks no connection, although no mux has flow entries,
// because hosts forward packets to the previous owner. Where they must not, connections break.
func TestRepairKeepsConnections(t *testing.T) {
	logsOnFailure(t, shared)
	all := len(everyVM)
	cases := []*repaired{
		{service: hashed("repair-adds", 119, "ipip", everyVM[:4]), alive: 5, change: func(s *service) { s.backends = everyVM[:5] }},
		// The ring doubles: nearly every slot moves.
		{service: hashed("repair-grows", 120, "ipip", everyVM[:5]), alive: all, change: func(s *service) { s.backends = everyVM }},
		{service: hashed("repair-removes", 121, "ipip", everyVM), alive: all - 1, change: func(s *service) { s.backends = everyVM[1:] }},
		{service: hashed("repair-drains", 122, "gue", everyVM), alive: all, change: func(s *service) { s.entry = with(*s, "host1-vm1", "drain: true") }},
		{service: hashed("repair-weighs", 123, "gue", everyVM), alive: all, change: func(s *service) {
			both := s.both
			s.entry = func(vm lab.Node) string {
				text := both(vm)
				if vm.Name == "host2-vm1" {
					text = strings.ReplaceAll(text, "}", ", weight: 3}")
				}
				return text
			}
		}},
		{service: hashed("repair-nothing", 124, "ipip", everyVM[:4]), alive: 5, forgets: true, change: func(s *service) { s.backends = everyVM[:5] }},
	}
	cases[4].entry = cases[4].both
	cases[5].more += "  repairWindow: 0s\n"
	before := repairs(t.Context(), t)
	for _, c := range cases {
		c.apply(t)
	}
	for _, c := range cases {
		c.awaitHops(t, shared.Topology.Muxes)
		c.awaitAlive(t, len(c.backends))
	}
	for _, c := range cases {
		const connections = 120
		conns := dialMany(t, c.targets(), connections)
		talk := conns.talk()
		after := c.service
		c.change(&after)
		after.apply(t)
		after.awaitAlive(t, c.alive)
		broken := talk.end()
		t.Logf("%s: %d of %d connections broke", c.name, len(broken), connections)
		if c.forgets && len(broken) == 0 {
			t.Errorf("%s: none broke: this test can say nothing of repair", c.name)
		}
		for i, err := range broken {
			if !c.forgets {
				t.Errorf("%s: connection %d from %s to %s broke: %v", c.name, i, conns[i].LocalAddr(), conns[i].RemoteAddr(), err)
			}
		}
		for _, conn := range conns {
			conn.Close()
		}
	}
	await(t, "hosts count what they repaired", func(ctx context.Context) error {
		now := repairs(ctx, t)
		for _, reason := range []string{"repaired_away", "repaired_here", "repair_arrived"} {
			if now[reason] <= before[reason] {
				return fmt.Errorf("%s is %d, it was %d", reason, now[reason], before[reason])
			}
		}
		if now["repair_failed"] != before["repair_failed"] {
			t.Errorf("repair_failed is %d, it was %d", now["repair_failed"], before["repair_failed"])
		}
		return nil
	})
}

// Bulk data in both directions continues while all slots move from one server to another. It is
// repaired packet by packet.
func TestRepairKeepsBulkData(t *testing.T) {
	logsOnFailure(t, shared)
	cases := []*repaired{
		{service: hashed("repair-bulk", 125, "ipip", []string{"host1-vm1"}), alive: 2, change: func(s *service) {
			s.backends = []string{"host1-vm1", "host2-vm1"}
			s.entry = with(*s, "host1-vm1", "drain: true")
		}},
		{service: hashed("repair-bulk-gue", 126, "gue", []string{"host1-vm1"}), alive: 1, change: func(s *service) { s.backends = []string{"host2-vm1"} }},
	}
	cases[1].entry = cases[1].both
	for _, c := range cases {
		c.apply(t)
	}
	var all []*bulk
	for _, c := range cases {
		c.awaitHops(t, shared.Topology.Muxes)
		c.awaitAlive(t, len(c.backends))
		for _, target := range c.targets() {
			all = append(all, startBulk(t, target))
		}
	}
	for _, c := range cases {
		away := reasons(t.Context(), t, "host2")["repaired_away"]
		after := c.service
		c.change(&after)
		after.apply(t)
		after.awaitAlive(t, c.alive)
		for _, b := range all {
			b.awaitMore(t)
		}
		await(t, "host2 repairs what is host1's", func(ctx context.Context) error {
			if now := reasons(ctx, t, "host2")["repaired_away"]; now < away+200 {
				return fmt.Errorf("repaired_away is %d, it was %d", now, away)
			}
			return nil
		})
		for _, target := range c.targets() {
			echoOnce(t, "tcp", target, "a connection of afterwards")
		}
	}
	for _, b := range all {
		b.end(t)
	}
}

// repairs returns the sum of the hosts' reasons.
func repairs(ctx context.Context, t *testing.T) map[string]uint64 {
	t.Helper()
	sum := map[string]uint64{}
	for _, n := range status(ctx, t).GetNodes() {
		for _, r := range n.GetReasons() {
			if strings.HasPrefix(r.GetReason(), "repair") {
				sum[r.GetReason()] += r.GetPackets()
			}
		}
	}
	return sum
}

// Host agents that are killed or replaced, also by ones with flow tables of another size, still
// find the owners of connections within the window: of connections from before a change, and of
// those that began after it.
func TestRepairOutlivesAgents(t *testing.T) {
	logsOnFailure(t, shared)
	s := hashed("repair-agents", 118, "gue", everyVM[:5])
	s.up(t)
	before := dialMany(t, s.targets(), 60)
	after := s
	after.backends = everyVM
	after.apply(t)
	after.awaitAlive(t, len(everyVM))
	talks := []*talk{before.talk(), dialMany(t, s.targets(), 60).talk()}
	for _, host := range []string{"host1", "host2", "host3"} {
		if err := shared.RestartAgent(t.Context(), host); err != nil {
			t.Fatal(err)
		}
		for _, flags := range [][]string{{"--flows", "65536"}, nil} {
			if err := shared.ReplaceAgent(t.Context(), host, program, flags...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, when := range []string{"before", "after"} {
		for n, err := range talks[i].end() {
			t.Errorf("connection %d of %s the change broke: %v", n, when, err)
		}
	}
}

// While a server is dead others get its new connections. After it recovers, its host forwards their
// packets to those servers, and none breaks although no mux has flow entries. Without repair some
// break.
func TestRepairOfServersThatComeBack(t *testing.T) {
	logsOnFailure(t, shared)
	const connections = 120
	cases := []*repaired{
		{service: hashed("revived", 132, "ipip", everyVM)},
		{service: hashed("revived-gue", 133, "gue", everyVM)},
		{service: hashed("revived-nothing", 134, "ipip", everyVM), forgets: true},
	}
	cases[1].entry = cases[1].both
	cases[2].more += "  repairWindow: 0s\n"
	for _, c := range cases {
		c.apply(t)
	}
	for _, c := range cases {
		c.awaitHops(t, shared.Topology.Muxes)
		c.awaitAlive(t, len(everyVM))
	}
	before := repairs(t.Context(), t)
	known := synced(t.Context(), t)
	if err := shared.StopServer(t.Context(), "host1-vm1"); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		c.awaitAlive(t, len(everyVM)-1)
	}
	// The revision has two endpoints for each family with the dead server, and the hosts have
	// applied it.
	await(t, "hosts know who is dead", func(ctx context.Context) error {
		if now := synced(ctx, t); now <= known {
			return fmt.Errorf("all are at revision %d", now)
		}
		return nil
	})
	var talks []*talk
	for _, c := range cases {
		talks = append(talks, dialMany(t, c.targets(), connections).talk())
	}
	if err := shared.StartServer(t.Context(), "host1-vm1"); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		c.awaitAlive(t, len(everyVM))
	}
	for i, c := range cases {
		broken := talks[i].end()
		t.Logf("%s: %d of %d connections broke", c.name, len(broken), connections)
		if c.forgets != (len(broken) > 0) {
			t.Errorf("%s: %d of %d connections broke: %v", c.name, len(broken), connections, broken)
		}
	}
	await(t, "hosts count what they repaired", func(ctx context.Context) error {
		if now := repairs(ctx, t); now["repair_arrived"] <= before["repair_arrived"] {
			return fmt.Errorf("repair_arrived is %d, it was %d", now["repair_arrived"], before["repair_arrived"])
		}
		return nil
	})
}

// synced returns the revision that all hosts have applied.
func synced(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	least := int64(-1)
	for _, n := range status(ctx, t).GetNodes() {
		if r := n.GetSyncedRevision(); n.GetRole() == "host" && (least < 0 || r < least) {
			least = r
		}
	}
	return least
}
