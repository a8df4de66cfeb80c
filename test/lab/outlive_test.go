package lab_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// outlived is a service whose connections must survive all changes.
type outlived struct {
	service
	how   string // lines of the endpoint
	conns connections
}

// cookied returns an echo service with an affinity.
func cookied(name string, number int, how string) *outlived {
	return &outlived{service: service{name: name, number: number, protocol: "tcp", port: 7, dipPort: 7, backends: everyVM[:4], more: how}, how: how}
}

// Connections with cookies survive while servers are added and drained, keys and schedulers change,
// agents of hosts are killed, and muxes are lost and return with empty flow tables. No kernel drops
// a segment because of its timestamp. Without cookies the same changes break some connections.
func TestCookiesOutliveEverything(t *testing.T) {
	logsOnFailure(t, shared)
	const connections = 80
	all := []*outlived{
		cookied("outlive-cookie", 171, "  affinity: cookie\n  scheduler: round-robin\n"),
		cookied("outlive-flow", 172, "  affinity: flow\n"),
	}
	odd := oddTimestamps(t)
	for _, s := range all {
		s.apply(t)
	}
	awaitKeys(t, all[0].vips(), "steady")
	var talks []*talk
	for _, s := range all {
		s.awaitHops(t, shared.Topology.Muxes)
		s.awaitAlive(t, len(s.backends))
		s.conns = dialMany(t, s.targets(), connections)
		talks = append(talks, s.conns.talk())
	}
	change := func(what string, change func(s *outlived)) {
		for _, s := range all {
			change(s)
			s.apply(t)
		}
		for _, s := range all {
			s.awaitAlive(t, len(s.backends))
		}
		t.Logf("%s", what)
	}
	lose := func(mux string) {
		if err := shared.LoseMux(t.Context(), mux); err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			s.awaitHops(t, shared.Topology.Muxes-1)
		}
		if err := shared.ReviveMux(mux); err != nil {
			t.Fatal(err)
		}
		if err := shared.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			s.awaitHops(t, shared.Topology.Muxes)
			s.awaitAlive(t, len(s.backends))
		}
	}
	change("a server comes", func(s *outlived) { s.backends = everyVM[:5] })
	lose("mux1")
	change("another comes", func(s *outlived) { s.backends = everyVM })
	change("one drains", func(s *outlived) { s.entry = with(s.service, "host1-vm1", "drain: true") })
	lose("mux2")
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	for _, vip := range all[0].vips() {
		if _, err := client.RotateKeys(t.Context(), connect.NewRequest(&apiv1.RotateKeysRequest{Scopes: []string{vip.String()}, Purpose: "cookie"})); err != nil {
			t.Fatal(err)
		}
	}
	awaitKeys(t, all[0].vips(), "rest")
	change("another drains in its place", func(s *outlived) { s.entry = with(s.service, "host2-vm1", "drain: true") })
	change("the scheduler is another", func(s *outlived) { s.more = strings.ReplaceAll(s.how, "round-robin", "p2c") })
	for _, host := range []string{"host1", "host2", "host3"} {
		if err := shared.RestartAgent(t.Context(), host); err != nil {
			t.Fatal(err)
		}
	}
	lose("mux1")
	for i, s := range all {
		broken := talks[i].end()
		t.Logf("%s: %d of %d connections broke", s.name, len(broken), len(s.conns))
		if i > 0 && len(broken) == 0 {
			t.Errorf("%s: none broke: this test can say nothing of cookies", s.name)
		}
		for n, err := range broken {
			if i == 0 {
				t.Errorf("%s: connection %d from %s to %s broke: %v", s.name, n, s.conns[n].LocalAddr(), s.conns[n].RemoteAddr(), err)
			}
		}
	}
	for what, n := range oddTimestamps(t) {
		if n != odd[what] {
			t.Errorf("%s is %d, it was %d", what, n, odd[what])
		}
	}
}

// awaitKeys waits until the cookie keys of VIPs are in a phase: steady when all nodes have the
// single key, rest when all hosts stamp with a new one.
func awaitKeys(t *testing.T, vips []netip.Addr, phase string) {
	t.Helper()
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	await(t, "cookie keys in phase "+phase, func(ctx context.Context) error {
		for _, vip := range vips {
			answer, err := client.ListKeys(ctx, connect.NewRequest(&apiv1.ListKeysRequest{Scopes: []string{vip.String()}}))
			if err != nil {
				return err
			}
			if keys := answer.Msg.GetKeys(); len(keys) != 1 || keys[0].GetPhase() != phase {
				return fmt.Errorf("of %s they are %v", vip, keys)
			}
		}
		return nil
	})
}

// oddTimestamps returns the kernels' counters of segments dropped because of their timestamps, by
// node and name. PAWSEstab of servers is no evidence: it is about the timestamps that clients send,
// which Shunt does not change, and counts a segment that a later one has overtaken by a
// millisecond. Two namespaces with a router between them, without Shunt, count two in 170,000
// requests on busy CPUs.
func oddTimestamps(t *testing.T) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, n := range shared.Topology.Nodes() {
		if n.Kind != lab.KindClient && n.Kind != lab.KindVM {
			continue
		}
		names := []string{"PAWSActive", "TSEcrRejected"}
		if n.Kind == lab.KindClient {
			names = append(names, "PAWSEstab")
		}
		for _, name := range names {
			out[n.Name+" "+name] = tcpCounter(t, n.Name, name)
		}
	}
	return out
}

// tcpCounter reads a counter of a node's TCP, by its name in /proc/net/netstat. A counter that this
// kernel lacks is 0.
func tcpCounter(t *testing.T, node, name string) (value uint64) {
	t.Helper()
	err := netdev.In(shared.Topology.Name+"-"+node, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		for i := 0; i+1 < len(lines); i += 2 {
			names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
			for j := range names {
				if names[j] == name {
					value, err = strconv.ParseUint(values[j], 10, 64)
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}
