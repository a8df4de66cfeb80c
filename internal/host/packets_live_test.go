package host

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
	"unique"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// liveProbes is a host that probes real servers by packets.
type liveProbes struct {
	*testNet
	asker   probe.Asker
	answers chan probe.Answer
	next    uint32
}

// livePackets starts the packets of a host whose uplink is up0, in its namespace.
func (n *testNet) livePackets(h *dataplane.Host) *liveProbes {
	n.t.Helper()
	l := &liveProbes{testNet: n, answers: make(chan probe.Answer, 64)}
	started := make(chan error)
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	var p *packets
	done.Go(func() {
		err := netdev.In(n.host, func() error {
			if p = openPackets(h, 192, "up0", clock.System{}, slog.New(slog.DiscardHandler)); p == nil {
				return fmt.Errorf("no packets")
			}
			var err error
			l.asker, err = p.open(func(all []probe.Answer) {
				for _, a := range all {
					l.answers <- a
				}
			})
			if err != nil {
				return err
			}
			started <- nil
			return p.run(ctx)
		})
		if err != nil {
			started <- err
		}
	})
	check(n.t, <-started)
	n.t.Cleanup(func() {
		stop()
		done.Wait()
		check(n.t, l.asker.Close())
		check(n.t, p.close())
	})
	return l
}

// add registers a target.
func (l *liveProbes) add(kind, address string, port uint16, timeout time.Duration) uint32 {
	l.t.Helper()
	c := lb.Check{Kind: kind, Interval: time.Minute, Timeout: timeout, Engine: lb.EnginePacket}
	c.SetDefaults()
	check(l.t, l.asker.Add(l.next, probe.Target{Check: unique.Make(c), Address: netip.AddrPortFrom(netip.MustParseAddr(address), port)}))
	l.next++
	return l.next - 1
}

// ask probes a target until the way to it is known.
func (l *liveProbes) ask(id uint32) probe.Answer {
	l.t.Helper()
	for {
		l.asker.Ask([]uint32{id})
		if a := <-l.answers; a.Verdict != probe.Void {
			return a
		}
	}
}

// say serves a port of the server with answer.
func (n *testNet) say(port int, answer func(net.Conn)) {
	n.t.Helper()
	check(n.t, netdev.In(n.server, func() error {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		n.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					b := make([]byte, 2048)
					if _, err := c.Read(b); err == nil {
						answer(c)
					}
				}()
			}
		}()
		return nil
	}))
}

// TestPacketsMeetRealServers checks every way to answer or to fail, over both families, with
// checksums in every state that the program can receive. If the host's device has no transmit
// checksums, the kernel completes partial ones after the program, and the server verifies them.
func TestPacketsMeetRealServers(t *testing.T) {
	for _, mode := range []struct {
		name     string
		vm0, v0  bool // transmit checksums
		gro      bool
		absentee string // an address that the host has a way for, but no machine has
	}{
		{"partial checksums, finished behind the program", false, true, false, "10.20.1.77"},
		{"whole checksums, joined by GRO", true, false, true, "10.20.1.78"},
		{"all offloads", true, true, true, "10.20.1.79"},
	} {
		t.Run(mode.name, func(t *testing.T) {
			n := newTestNet(t, 1500)
			n.offloads(n.host, "vm0", mode.vm0, mode.gro)
			n.offloads(n.server, "v0", mode.v0, mode.gro)
			n.startServers()
			n.say(8001, func(c net.Conn) {
				fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")
				sendPattern(c, 5000)
			})
			n.say(8002, func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 500 No\r\n\r\n") })
			n.say(8003, func(c net.Conn) { fmt.Fprint(c, "SSH-2.0-x\r\n") })
			n.say(8004, func(net.Conn) {})
			n.say(8005, func(c net.Conn) { c.Read(make([]byte, 1)) })
			n.say(8006, func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) })
			h := n.attach()
			l := n.livePackets(h)
			before := reasonsOf(t, h)
			for _, c := range []struct {
				kind    string
				port    uint16
				timeout time.Duration
				verdict probe.Verdict
				words   string
			}{
				{lb.CheckTCP, serverPort, patience, probe.Good, "connected"},
				{lb.CheckTCP, 8099, patience, probe.Bad, "connection refused"},
				{lb.CheckHTTP, 8001, patience, probe.Good, "status 200"},
				{lb.CheckHTTP, 8002, patience, probe.Bad, "status 500"},
				{lb.CheckHTTP, 8003, patience, probe.Unsure, "connected, but the answer begins with no whole status line"},
				{lb.CheckHTTP, 8004, patience, probe.Bad, "connected, but closed without an answer"},
				{lb.CheckHTTP, 8005, 200 * time.Millisecond, probe.Bad, "connected, but no bytes within 200 ms"},
				{lb.CheckHTTP, 8006, patience, probe.Bad, "connected, but reset"},
				{lb.CheckHTTP, 8099, patience, probe.Bad, "connection refused"},
			} {
				for _, address := range []string{dip4, dip6} {
					id := l.add(c.kind, address, c.port, c.timeout)
					for range 2 {
						if a := l.ask(id); a.Verdict != c.verdict || a.Words != c.words {
							t.Errorf("%s of %s:%d: %+v, want verdict %d, %q", c.kind, address, c.port, a, c.verdict, c.words)
						}
					}
				}
			}
			after := reasonsOf(t, h)
			for _, reason := range []string{"probe_asked", "probe_ended", "probe_reset"} {
				if after[reason] == before[reason] {
					t.Errorf("%s was not counted", reason)
				}
			}
			if n := after["probe_no_room"]; n != 0 {
				t.Errorf("probe_no_room counted %d", n)
			}
			// Sockets probe the servers that packets cannot: those on the machine itself, behind
			// the uplink, and those that do not answer.
			n.command(n.host, "ip", "neigh", "replace", mode.absentee, "lladdr", "02:00:00:00:00:77", "dev", "vm0", "nud", "permanent")
			n.command(n.host, "ip", "route", "add", mode.absentee, "dev", "vm0")
			for _, c := range []struct {
				address string
				words   string
			}{
				{host4, "no route to " + host4}, {host6, "no route to " + host6},
				{client4, "probe " + client4 + ":8080: the way to the server does not lead out of a device of servers"},
				{mode.absentee, "no answer to three SYNs within 200 ms"},
			} {
				if a := l.ask(l.add(lb.CheckTCP, c.address, serverPort, 200*time.Millisecond)); a.Verdict != probe.Unsure || a.Words != c.words {
					t.Errorf("%s: %+v, want unsure, %q", c.address, a, c.words)
				}
			}
			// Probes do not affect clients of the same server and port.
			asked := l.add(lb.CheckTCP, dip4, serverPort, patience)
			ended := make(chan struct{})
			var asking sync.WaitGroup
			asking.Go(func() {
				for {
					select {
					case <-ended:
						return
					default:
						l.ask(asked)
					}
				}
			})
			for _, name := range []string{"4in4", "GUE 4in4", "rewrite none 4"} {
				n.exchange(t, find(t, name), 1<<20)
			}
			close(ended)
			asking.Wait()
		})
	}
}

// TestPacketsFollowAServerThatMoves checks a server that moves to a device that is created later.
func TestPacketsFollowAServerThatMoves(t *testing.T) {
	n := newTestNet(t, 1500)
	n.startServers()
	l := n.livePackets(n.attach())
	id := l.add(lb.CheckTCP, dip4, serverPort, patience)
	if a := l.ask(id); a.Verdict != probe.Good {
		t.Fatalf("before: %+v", a)
	}
	n.command(n.host, "ip", "link", "delete", "vm0")
	for range 2 {
		if a := l.await(id, probe.Unsure); a.Words != "no route to "+dip4 && a.Words != "probe "+dip4+":8080: the way to the server does not lead out of a device of servers" {
			t.Errorf("without a device: %+v", a)
		}
	}
	host, server := n.reopen(n.host), n.reopen(n.server)
	check(t, netdev.AddVeth(netdev.VethEnd{Namespace: host, Name: "vm9"}, netdev.VethEnd{Namespace: server, Name: "v9"}, 1500))
	n.address(host, "vm9", gateway4+"/32")
	n.address(server, "v9", dip4+"/32")
	n.route(host, "vm9", "", dip4+"/32")
	n.route(server, "v9", "", gateway4+"/32")
	if a := l.await(id, probe.Good); a.Words != "connected" {
		t.Errorf("by the new device: %+v", a)
	}
}

// await probes a target until its verdict is want.
func (l *liveProbes) await(id uint32, want probe.Verdict) (a probe.Answer) {
	l.t.Helper()
	for end := time.Now().Add(2 * patience); time.Now().Before(end); {
		if a = l.ask(id); a.Verdict == want {
			return a
		}
	}
	l.t.Fatalf("the last answer is %+v, want verdict %d", a, want)
	return a
}

// reopen opens an existing namespace.
func (n *testNet) reopen(name string) *netdev.Namespace {
	n.t.Helper()
	ns, err := netdev.OpenNamespace(name)
	check(n.t, err)
	n.t.Cleanup(ns.Close)
	return ns
}

// probeDevices attaches the program that receives answers to probes to a device, for as long as
// this process lives.
func probeDevices(h *dataplane.Host, namespace, device string) error {
	return netdev.In(namespace, func() error {
		dev, err := netdev.FindInterface(device)
		if err != nil {
			return err
		}
		probes, err := h.OpenProbes(64)
		if err == nil {
			_, err = probes.Follow([]int{dev.Index})
		}
		return err
	})
}

// TestAKilledAgentLeavesNoProbesOnServersDevices checks that the programs of the uplink and of
// host_serve stay, and that those of probes are detached.
func TestAKilledAgentLeavesNoProbesOnServersDevices(t *testing.T) {
	n := newTestNet(t, 1500)
	kill := n.agentProcess()
	if up, vm := len(n.programs("up0")), len(n.programs("vm0")); up != 1 || vm != 2 {
		t.Errorf("while it lives: %d programs on the uplink, %d on the server's device, want one and two", up, vm)
	}
	kill()
	if up, vm := len(n.programs("up0")), len(n.programs("vm0")); up != 1 || vm != 1 {
		t.Errorf("after it was killed: %d programs on the uplink, %d on the server's device, want one each", up, vm)
	}
}
