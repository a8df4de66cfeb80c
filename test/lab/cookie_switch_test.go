package lab_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
)

// manyDraining writes, after the last backend, n others of each family that drain on its host:
// members whose ids a server's own timestamp can decode to.
func manyDraining(s service, n int) func(lab.Node) string {
	last := s.backends[len(s.backends)-1]
	return func(vm lab.Node) string {
		text := s.perFamily(vm)
		if vm.Name != last {
			return text
		}
		var b strings.Builder
		b.WriteString(text)
		hosts := lab.HostAddresses(vm.Index)
		six := netip.MustParsePrefix("2001:db8:20:da::/64").Addr().As16()
		for i := range n {
			six[14], six[15] = byte(i>>8), byte(i)
			fmt.Fprintf(&b, "  - {dip: \"10.20.%d.%d\", port: %d, host: %q, drain: true}\n", 100+i>>8, i&255, s.dipPort, hosts.V4.Addr())
			fmt.Fprintf(&b, "  - {dip: %q, port: %d, host: %q, drain: true}\n", netip.AddrFrom16(six), s.dipPort, hosts.V6.Addr())
		}
		return b.String()
	}
}

// TestCookiesSwitchedOn changes affinity flow to cookie under 240 connections. None may break while
// the timestamps of their servers, which no host stamps, take several values of the cookie bits:
// with 2,000 members each such value decodes to another member's cookie in 3 % of connections, for
// as long as it lasts (32.8 s). Later connections have cookies.
func TestCookiesSwitchedOn(t *testing.T) {
	logsOnFailure(t, shared)
	const connections, draining, turns = 240, 2000, 3
	s := service{
		name: "switched", number: 236, protocol: "tcp", port: 7, dipPort: 7, backends: everyVM[:4], encap: "gue", more: "  affinity: flow\n",
		health: "{tcp: {}, port: 7, interval: 60s, timeout: 10s, fall: 10, initial: up}",
	}
	s.entry = manyDraining(s, draining)
	s.apply(t)
	s.awaitHops(t, shared.Topology.Muxes)
	conns := dialMany(t, s.targets(), connections)
	talk := conns.talk()
	s.more = "  affinity: cookie\n"
	s.apply(t)
	awaitKeys(t, s.vips(), "steady")
	client := listen(t, "client1", lab.Uplink)
	// One connection of each server and family is enough, because their clocks run alike.
	port := conns[0].LocalAddr().(*net.TCPAddr).Port
	var seen []uint32
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for len(seen) < turns {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("the clock of a server stands still")
		}
		stamp, ok := client.lastStamp(port)
		if ok && (len(seen) == 0 || seen[len(seen)-1] != stamp>>15) {
			seen = append(seen, stamp>>15)
		}
		client.forget()
	}
	begun := dialMany(t, s.targets(), 8)
	for i, err := range talk.end() {
		t.Errorf("connection %d from %s to %s broke: %v", i, conns[i].LocalAddr(), conns[i].RemoteAddr(), err)
	}
	begun.speak(t, "later")
	for _, c := range append(conns, begun...) {
		c.Close()
	}
}

// synChoice is longer than muxes keep a scheduler's choice for a SYN of an endpoint with cookies.
const synChoice = 12 * time.Second

// TestCookiesSwitchedOff changes affinity cookie to flow under 240 connections that a scheduler
// placed. None may break, although no flow table has them after their SYN entries expire, and the
// ring maps three of four to other servers. Later connections have no cookies.
func TestCookiesSwitchedOff(t *testing.T) {
	logsOnFailure(t, shared)
	const connections = 240
	s := service{
		name: "switched-off", number: 240, protocol: "tcp", port: 7, dipPort: 7, backends: everyVM[:4],
		more: "  affinity: cookie\n  scheduler: round-robin\n  repairWindow: 0s\n",
	}
	s.apply(t)
	s.awaitHops(t, shared.Topology.Muxes)
	awaitKeys(t, s.vips(), "steady")
	conns := dialMany(t, s.targets(), connections)
	talk := conns.talk()
	select {
	case <-time.After(synChoice): // the silence under test: no SYN is repeated
	case <-t.Context().Done():
	}
	s.more = "  affinity: flow\n  scheduler: round-robin\n  repairWindow: 0s\n"
	s.apply(t)
	s.awaitHops(t, shared.Topology.Muxes)
	begun := dialMany(t, s.targets(), 8)
	for i, err := range talk.end() {
		t.Errorf("connection %d from %s to %s broke: %v", i, conns[i].LocalAddr(), conns[i].RemoteAddr(), err)
	}
	begun.speak(t, "later")
	for _, c := range append(conns, begun...) {
		c.Close()
	}
}
