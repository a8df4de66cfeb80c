package lab_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/pkg/quiclb"
)

// quicMoves is how often each client changes its port and address.
const quicMoves = 20

// quicService returns an HTTP/3 service. quic is the endpoint's block.
func quicService(name string, number int, quic string, backends ...string) service {
	return service{
		name: name, number: number, protocol: "udp", as: "quic", port: 443, dipPort: lab.QUICPort, backends: backends,
		more: "  quic: " + quic + "\n", health: patientHTTP,
	}
}

// serveQUIC starts the service's server on a VM, for both families, with the manager's
// configuration of connection ids.
func (s service) serveQUIC(t *testing.T, vm string) {
	t.Helper()
	for _, server := range s.quicServers(t, vm) {
		if err := shared.StartQUIC(t.Context(), server); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := shared.StopQUIC(context.Background(), server); err != nil {
				t.Error(err)
			}
		})
	}
}

// quicServers returns the service's servers on a VM by the manager's current configuration. Every
// client has to prove its address.
func (s service) quicServers(t *testing.T, vm string) (servers []lab.QUICServer) {
	t.Helper()
	node, err := shared.Topology.Find(vm)
	if err != nil {
		t.Fatal(err)
	}
	for network, dip := range map[string]netip.Addr{"udp4": node.Addresses().V4.Addr(), "udp6": node.Addresses().V6.Addr()} {
		text := mustShunt(t, "get", "quic", s.name, "--backend", dip.String(), "-o", "json")
		servers = append(servers, lab.QUICServer{VM: vm, Network: network, Config: []byte(text), Retry: true})
	}
	return servers
}

// mover is a client in a separate process that downloads all the time, and migrates on command.
type mover struct {
	name     string
	commands io.WriteCloser
	reports  chan lab.QUICReport
	last     lab.QUICReport
}

// startMover runs a client on client1 and returns when it has its first response.
func startMover(t *testing.T, name string, argv ...string) *mover {
	t.Helper()
	cmd := shared.Command(argv...)
	cmd.Stderr = os.Stderr
	commands, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.StartOn("client1", cmd); err != nil {
		t.Fatal(err)
	}
	m := &mover{name: name, commands: commands, reports: make(chan lab.QUICReport, 1)}
	go func() {
		defer close(m.reports)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			r := lab.QUICReport{}
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				r.Event, r.Error = "failed", fmt.Sprintf("%s: %v", lines.Text(), err)
			}
			m.reports <- r
		}
	}()
	t.Cleanup(func() {
		commands.Close()
		for range m.reports {
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	return m
}

// want waits for the next report. It must be the event, from the same server as always.
func (m *mover) want(t *testing.T, event string) {
	t.Helper()
	select {
	case r, ok := <-m.reports:
		if !ok {
			t.Fatalf("%s ended when it should be %s", m.name, event)
		}
		if r.Event != event || m.last.Server != "" && r.Server != m.last.Server {
			t.Fatalf("%s: %+v, want %s from %s", m.name, r, event, m.last.Server)
		}
		m.last = r
	case <-time.After(2 * eventually):
		t.Fatalf("%s: nothing is heard when it should be %s; before: %+v", m.name, event, m.last)
	}
}

// tell sends a command to all clients and waits until each has executed it.
func tell(t *testing.T, movers []*mover, event string, order func(i int) string) {
	t.Helper()
	for i, m := range movers {
		if _, err := fmt.Fprintln(m.commands, order(i)); err != nil {
			t.Fatalf("%s: %v", m.name, err)
		}
	}
	for _, m := range movers {
		m.want(t, event)
	}
}

// moreAddresses adds a second address of each family to client1 for the rest of the test, and
// returns all four, by family.
func moreAddresses(t *testing.T) (v4, v6 []string) {
	t.Helper()
	ns, err := netdev.OpenNamespace(client1())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	first, second := lab.ClientAddresses(1), lab.ClientAddresses(88)
	for _, prefix := range []netip.Prefix{second.V4, second.V6} {
		if err := ns.AddAddress(lab.Uplink, prefix); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := ns.DeleteAddress(lab.Uplink, prefix); err != nil {
				t.Error(err)
			}
		})
	}
	return []string{first.V4.Addr().String(), second.V4.Addr().String()}, []string{first.V6.Addr().String(), second.V6.Addr().String()}
}

// startMovers runs a client of each library for each VIP and each length of ClientHello: with 90
// additional protocol names it takes several datagrams.
func startMovers(t *testing.T, s service, names ...string) (movers []*mover) {
	t.Helper()
	python, err := filepath.Abs("../../.tools/aioquic/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(python); err != nil {
		t.Fatalf("aioquic: %v: run make setup", err)
	}
	script, err := filepath.Abs("../aioquic/client.py")
	if err != nil {
		t.Fatal(err)
	}
	v4, v6 := moreAddresses(t)
	for _, target := range s.targets() {
		at := netip.MustParseAddrPort(target)
		from := strings.Join(v4, ",")
		if at.Addr().Is6() {
			from = strings.Join(v6, ",")
		}
		for _, n := range names {
			movers = append(movers,
				startMover(t, "quic-go to "+target, program, "lab-quic", target, "--from", from, "--names", n),
				startMover(t, "aioquic to "+target, python, script, at.Addr().String(), fmt.Sprint(at.Port()), "--from", from, "--names", n))
		}
	}
	for _, m := range movers {
		m.want(t, "connected")
	}
	return movers
}

// rotateQUIC rotates the key of connection ids: muxes get the new one first, then servers make ids
// with it.
func (s service) rotateQUIC(t *testing.T, vms []string) {
	t.Helper()
	before := s.quicServers(t, vms[0])[0].Config
	mustShunt(t, "rotate", "keys", s.name, "--purpose", "cid")
	await(t, "another key to make connection ids with", func(context.Context) error {
		if newest(t, s.quicServers(t, vms[0])[0].Config) == newest(t, before) {
			return errors.New("there is none")
		}
		return nil
	})
	for _, vm := range vms {
		node, err := shared.Topology.Find(vm)
		if err != nil {
			t.Fatal(err)
		}
		for _, server := range s.quicServers(t, vm) {
			if err := shared.SetQUIC(server); err != nil {
				t.Fatal(err)
			}
			address := node.Addresses().V4.Addr()
			if server.Network == "udp6" {
				address = node.Addresses().V6.Addr()
			}
			await(t, vm+" makes connection ids with it", func(ctx context.Context) error {
				now, err := shared.AskQUIC(ctx, vm, netip.AddrPortFrom(address, lab.QUICPort), "/quic")
				if want := newest(t, server.Config); err == nil && now != want {
					err = fmt.Errorf("%s, want %s", now, want)
				}
				return err
			})
		}
	}
}

// newest returns the configuration with which servers make new connection ids.
func newest(t *testing.T, text []byte) string {
	t.Helper()
	configs, err := quiclb.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := configs.Newest()
	return c.String()
}

// Clients download while they change port and address 20 times, and everything else changes as
// well: servers are added, drained and removed, a mux is lost and returns, agents are replaced, the
// key is rotated. No download breaks or changes its server.
func TestQUICMigration(t *testing.T) {
	logsOnFailure(t, shared)
	ctx := t.Context()
	s := quicService("quic", 180, "{format: quiclb}", "host1-vm1", "host2-vm1", "host3-vm1")
	s.up(t)
	vms := append([]string{"host1-vm2"}, s.backends...)
	for _, vm := range s.backends {
		s.serveQUIC(t, vm)
	}
	movers := startMovers(t, s, "0", "90")
	grown := s
	grown.backends = vms
	steps := map[int]func(){
		2: func() {
			grown.apply(t)
			grown.serveQUIC(t, "host1-vm2")
			grown.awaitAlive(t, 4)
		},
		4: func() {
			drained := grown
			drained.entry = with(grown, movers[0].last.Server, "drain: true")
			drained.apply(t)
		},
		6: func() {
			if err := shared.LoseMux(ctx, "mux2"); err != nil {
				t.Fatal(err)
			}
			s.awaitHops(t, shared.Topology.Muxes-1)
		},
		9: func() {
			if err := shared.ReviveMux("mux2"); err != nil {
				t.Fatal(err)
			}
			s.awaitHops(t, shared.Topology.Muxes)
			if err := shared.WaitReady(ctx); err != nil {
				t.Fatal(err)
			}
		},
		11: func() { grown.rotateQUIC(t, vms) },
		14: func() {
			grown.apply(t)
			grown.awaitAlive(t, 4)
		},
		16: func() {
			if err := shared.RestartAgent(ctx, "mux1"); err != nil {
				t.Fatal(err)
			}
		},
		18: func() { s.apply(t) }, // removes a server that has none of these connections
	}
	for i := range quicMoves {
		if step := steps[i]; step != nil {
			step()
		}
		tell(t, movers, "moved", func(n int) string {
			// aioquic, every second client, also continues with its old connection id, as behind a
			// NAT that rebinds its port.
			if n%2 == 1 && i%3 == 2 {
				return "rebind"
			}
			return "move"
		})
	}
	tell(t, movers, "ended", func(int) string { return "end" })
	downloads := 0
	at := map[string]int{}
	for _, m := range movers {
		downloads += m.last.Downloads
		at[m.last.Server]++
	}
	t.Logf("%d clients moved %d times each; %d downloads, by %v", len(movers), quicMoves, downloads, at)
	s.spreads(t)
}

// spreads fails the test unless new connections reach several servers, because with one server the
// test would not show that connections stay.
func (s service) spreads(t *testing.T) {
	t.Helper()
	for _, target := range s.targets() {
		at := map[string]int{}
		// Each reaches any of them by chance.
		for range 200 {
			if len(at) == len(s.backends) {
				break
			}
			ctx, cancel := context.WithTimeout(t.Context(), eventually)
			name, err := shared.AskQUIC(ctx, "client1", netip.MustParseAddrPort(target), "/")
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			at[name]++
		}
		if len(at) < len(s.backends) {
			t.Errorf("new connections to %s come to %v, want all of %v", target, at, s.backends)
		}
	}
}

// Connection ids of every format lead to their server, from whatever port and address.
func TestQUICFormats(t *testing.T) {
	for i, quic := range []string{
		"{format: quiclb, serverIdLength: 2, nonceLength: 9}", "{format: quiclb, serverIdLength: 5, nonceLength: 14}", "{format: quiclb-plain}", "{format: msquic}", "{format: mvfst}",
	} {
		t.Run(quic, func(t *testing.T) {
			logsOnFailure(t, shared)
			s := quicService("quic-format", 181+i, quic, "host1-vm1", "host2-vm1", "host3-vm1")
			s.up(t)
			for _, vm := range s.backends {
				s.serveQUIC(t, vm)
			}
			movers := startMovers(t, s, "90")
			for range 4 {
				tell(t, movers, "moved", func(int) string { return "move" })
			}
			tell(t, movers, "ended", func(int) string { return "end" })
			s.spreads(t)
		})
	}
}
