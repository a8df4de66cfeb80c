package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/wire"
)

// outside is the far end of the servers' connections: a TCP and a UDP echo service in client1,
// whose addresses record the sources.
type outside struct {
	tcp, udp netip.AddrPort

	mu    sync.Mutex
	heard map[string]map[netip.AddrPort]int // by protocol: sources and their counts
}

// newOutside begins to listen.
func newOutside(t *testing.T) *outside {
	t.Helper()
	o := &outside{heard: map[string]map[netip.AddrPort]int{"tcp": {}, "udp": {}}}
	at := lab.ClientAddresses(1).V4.Addr()
	err := netdev.In(client1(), func() error {
		l, err := net.Listen("tcp4", netip.AddrPortFrom(at, 0).String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		p, err := net.ListenPacket("udp4", netip.AddrPortFrom(at, 0).String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { p.Close() })
		o.tcp, o.udp = l.Addr().(*net.TCPAddr).AddrPort(), p.LocalAddr().(*net.UDPAddr).AddrPort()
		go o.accept(l)
		go o.answer(p)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *outside) note(protocol string, from net.Addr) {
	a, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.heard[protocol][netip.AddrPortFrom(a.Addr().Unmap(), a.Port())]++
}

// from returns the sources of a protocol.
func (o *outside) from(protocol string) []netip.AddrPort {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []netip.AddrPort
	for a := range o.heard[protocol] {
		out = append(out, a)
	}
	return out
}

func (o *outside) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		o.note("tcp", conn.RemoteAddr())
		go func() {
			defer conn.Close()
			io.Copy(conn, conn) //nolint:errcheck // who asked sees what is missing
		}()
	}
}

func (o *outside) answer(p net.PacketConn) {
	b := make([]byte, 2048)
	for {
		n, from, err := p.ReadFrom(b)
		if err != nil {
			return
		}
		o.note("udp", from)
		p.WriteTo(b[:n], from) //nolint:errcheck // who asked sees what is missing
	}
}

// onVM returns the namespace of a server.
func onVM(vm string) string { return shared.Topology.Name + "-" + vm }

// dialAs opens a connection from a server.
func dialAs(t *testing.T, vm, network string, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	conn, err := netdev.Dialer(onVM(vm))(ctx, network, to.String())
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	return conn, conn.SetDeadline(time.Now().Add(eventually))
}

// dialOut opens connections from servers in turn to the outside.
func (o *outside) dialOut(t *testing.T, vms []string, n int) connections {
	t.Helper()
	var all connections
	for i := range n {
		conn, err := dialAs(t, vms[i%len(vms)], "tcp4", o.tcp)
		if err != nil {
			t.Fatalf("connection %d, from %s: %v", i, vms[i%len(vms)], err)
		}
		all = append(all, conn)
	}
	all.speak(t, "opened")
	return all
}

// askByUDP sends datagrams from a server until there is a reply, because datagrams may be lost.
func (o *outside) askByUDP(t *testing.T, vm string) {
	t.Helper()
	conn, err := dialAs(t, vm, "udp4", o.udp)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "an answer by UDP to "+vm, func(context.Context) error {
		if _, err := conn.Write([]byte("question of " + vm)); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		b := make([]byte, 100)
		n, err := conn.Read(b)
		if err == nil && string(b[:n]) != "question of "+vm {
			err = fmt.Errorf("heard %q", b[:n])
		}
		return err
	})
}

// pingFrom sends echo requests from a server to client1 until one gets a reply, and returns the
// source that client1 received.
func pingFrom(t *testing.T, vm string, id uint16) (from netip.Addr) {
	t.Helper()
	to := lab.ClientAddresses(1).V4.Addr()
	var ear net.PacketConn
	if err := netdev.In(client1(), func() (err error) { ear, err = net.ListenPacket("ip4:icmp", to.String()); return err }); err != nil {
		t.Fatal(err)
	}
	defer ear.Close()
	heard := make(chan netip.Addr, 1)
	data := fmt.Sprintf("ping of %s, %d", vm, id)
	go func() {
		b := make([]byte, 1500)
		for {
			n, a, err := ear.ReadFrom(b)
			if err != nil {
				return
			}
			if addr, err := netip.ParseAddr(a.String()); err == nil && n >= 8 && b[0] == 8 && string(b[8:n]) == data {
				select {
				case heard <- addr:
				default:
				}
			}
		}
	}()
	var conn net.PacketConn
	if err := netdev.In(onVM(vm), func() (err error) { conn, err = net.ListenPacket("ip4:icmp", "0.0.0.0"); return err }); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	await(t, "an echo reply to "+vm, func(context.Context) error {
		if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		if _, err := conn.WriteTo(wire.Echo{ID: id, Seq: 1, Data: []byte(data)}.Bytes(to, to), &net.IPAddr{IP: to.AsSlice()}); err != nil {
			return err
		}
		b := make([]byte, 1500)
		for {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return err
			}
			if n >= 8 && b[0] == echoReply4 && int(b[4])<<8|int(b[5]) == int(id) && string(b[8:n]) == data {
				return nil
			}
		}
	})
	select {
	case from = <-heard:
	case <-time.After(eventually):
		t.Fatalf("client1 heard no ping of %s", vm)
	}
	return from
}

// snatted returns a service whose servers' own connections use its VIP.
func snatted(name string, number int, encap string, backends []string) service {
	s := service{name: name, number: number, protocol: "tcp", port: 80, dipPort: 8080, encap: encap, backends: backends}
	var dips []string
	for _, vm := range backends {
		n, err := shared.Topology.Find(vm)
		if err != nil {
			panic(err)
		}
		dips = append(dips, fmt.Sprintf("%q", n.Addresses().V4.Addr()))
	}
	s.rest = "snat: [" + joined(dips) + "]\n"
	return s
}

func joined(texts []string) string {
	out := ""
	for i, s := range texts {
		if i > 0 {
			out += ", "
		}
		out += s
	}
	return out
}

// leases returns the first ports of ranges by server, as the managers have them. No port is in it
// twice.
func leases(ctx context.Context, service string) (map[string][]uint32, error) {
	client, err := shared.Client()
	if err != nil {
		return nil, err
	}
	answer, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{SnatOf: service}))
	if err != nil {
		return nil, err
	}
	out, owner := map[string][]uint32{}, map[string]string{}
	for _, s := range answer.Msg.GetSnat() {
		out[s.GetDip()] = s.GetPorts()
		for _, port := range s.GetPorts() {
			key := fmt.Sprintf("%s:%d", s.GetVip(), port)
			if other := owner[key]; other != "" {
				return nil, fmt.Errorf("%s is leased to %s and to %s", key, other, s.GetDip())
			}
			owner[key] = s.GetDip()
		}
	}
	return out, nil
}

// TestSNAT checks that outbound traffic of servers with SNAT leaves with their VIP, by TCP, UDP and
// ping, and that replies reach them through any mux. Other servers use their own addresses.
func TestSNAT(t *testing.T) {
	logsOnFailure(t, shared)
	o := newOutside(t)
	for _, encap := range []string{"ipip", "gue"} {
		t.Run(encap, func(t *testing.T) {
			number := map[string]int{"ipip": 140, "gue": 141}[encap]
			vms := map[string][]string{"ipip": {"host1-vm1", "host2-vm1"}, "gue": {"host2-vm2", "host3-vm1"}}[encap]
			s := snatted("snat-"+encap, number, encap, vms)
			s.up(t)
			vip := s.vips()[0]
			// Several times as many as a server has ports at first.
			conns := o.dialOut(t, vms, 60)
			for _, vm := range vms {
				o.askByUDP(t, vm)
				if from := pingFrom(t, vm, 4242); from != vip {
					t.Errorf("a ping of %s came from %s, want %s", vm, from, vip)
				}
			}
			held, err := leases(t.Context(), s.name)
			if err != nil {
				t.Fatal(err)
			}
			for _, protocol := range []string{"tcp", "udp"} {
				n := 0
				for _, from := range o.from(protocol) {
					if from.Addr() != vip {
						continue
					}
					n++
					if !slices.ContainsFunc(vms, func(vm string) bool {
						node, _ := shared.Topology.Find(vm)
						return slices.Contains(held[node.Addresses().V4.Addr().String()], uint32(from.Port()&^7))
					}) {
						t.Errorf("%s: port %d is leased to nobody: %v", protocol, from.Port(), held)
					}
				}
				if want := map[string]int{"tcp": len(conns), "udp": len(vms)}[protocol]; n < want {
					t.Errorf("%s: %d connections came from %s, want %d", protocol, n, vip, want)
				}
			}
			conns.speak(t, "at the end")
		})
	}
	conn, err := dialAs(t, "host1-vm2", "tcp4", o.tcp)
	if err != nil {
		t.Fatal(err)
	}
	node, _ := shared.Topology.Find("host1-vm2")
	connections{conn}.speak(t, "without SNAT")
	if !slices.ContainsFunc(o.from("tcp"), func(a netip.AddrPort) bool { return a.Addr() == node.Addresses().V4.Addr() }) {
		t.Error("a server without SNAT does not send as it is")
	}
	// Internal traffic is not translated: server to server.
	inside, err := dialAs(t, "host1-vm1", "tcp4", netip.AddrPortFrom(node.Addresses().V4.Addr(), lab.EchoPort))
	if err != nil {
		t.Fatal(err)
	}
	connections{inside}.speak(t, "inside")
}

// TestSNATOutlives checks that connections of servers with SNAT survive, and new ones begin, when
// muxes are lost and return, and agents of hosts and muxes and a manager are killed.
func TestSNATOutlives(t *testing.T) {
	logsOnFailure(t, shared)
	o := newOutside(t)
	vms := []string{"host1-vm1", "host3-vm2"}
	s := snatted("snat-outlives", 142, "ipip", vms)
	s.up(t)
	conns := o.dialOut(t, vms, 40)
	before, err := leases(t.Context(), s.name)
	if err != nil {
		t.Fatal(err)
	}
	talk := conns.talk()
	more := func(when string) {
		t.Helper()
		o.dialOut(t, vms, 10).speak(t, when)
	}
	for _, mux := range []string{"mux1", "mux2"} {
		if err := shared.LoseMux(t.Context(), mux); err != nil {
			t.Fatal(err)
		}
		s.awaitHops(t, 1)
		more("without " + mux)
		if err := shared.ReviveMux(mux); err != nil {
			t.Fatal(err)
		}
		s.awaitHops(t, 2)
	}
	for _, node := range []string{"host1", "mux1", "host3", "mux2"} {
		if err := shared.KillAgent(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		if node[:3] == "mux" {
			more("while the agent of " + node + " is gone")
		}
		if err := shared.StartAgent(node); err != nil {
			t.Fatal(err)
		}
		await(t, node+" is back", func(ctx context.Context) error {
			for _, n := range status(ctx, t).GetNodes() {
				if n.GetName() == node && n.GetConnected() {
					return nil
				}
			}
			return errors.New("not connected")
		})
		more("after the agent of " + node + " came back")
	}
	if err := shared.KillManager(t.Context(), "manager1"); err != nil {
		t.Fatal(err)
	}
	if err := shared.StartManager("manager1"); err != nil {
		t.Fatal(err)
	}
	await(t, "leases after the manager came back", func(ctx context.Context) error {
		after, err := leases(ctx, s.name)
		if err != nil {
			return err
		}
		for dip, ports := range before {
			for _, p := range ports {
				if !slices.Contains(after[dip], p) {
					return fmt.Errorf("%s had ports from %d on, now it has %v", dip, p, after[dip])
				}
			}
		}
		return nil
	})
	more("after the manager came back")
	for i, err := range talk.end() {
		t.Errorf("connection %d from %s to %s broke: %v", i, conns[i].LocalAddr(), conns[i].RemoteAddr(), err)
	}
	s.awaitHops(t, 2)
}

// TestSNATWaits opens more connections together than a server has ports, while a manager leases
// none for a while: the first packets of some are queued at the agent until ports are leased, and
// all connections are opened.
func TestSNATWaits(t *testing.T) {
	logsOnFailure(t, shared)
	o := newOutside(t)
	s := snatted("snat-waits", 143, "ipip", []string{"host2-vm1"})
	s.up(t)
	before := reasons(t.Context(), t, "host2")
	if err := shared.FreezeManager("manager1", true); err != nil {
		t.Fatal(err)
	}
	defer shared.FreezeManager("manager1", false) //nolint:errcheck // it goes on long before
	const connections = 200
	var wg sync.WaitGroup
	errs := make([]error, connections)
	for i := range errs {
		wg.Go(func() {
			conn, err := dialAs(t, "host2-vm1", "tcp4", o.tcp)
			if err == nil {
				_, err = io.WriteString(conn, "?")
			}
			if err == nil {
				_, err = io.ReadFull(conn, make([]byte, 1))
			}
			errs[i] = err
		})
	}
	await(t, "a connection without a port", func(context.Context) error { return unheard("host2-vm1", o.tcp.Port()) })
	if err := shared.FreezeManager("manager1", false); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	held, err := leases(t.Context(), s.name)
	if err != nil {
		t.Fatal(err)
	}
	for dip, ports := range held {
		if n := len(ports) * 8; n < connections {
			t.Errorf("%s has %d ports for %d connections to one far end", dip, n, connections)
		}
	}
	await(t, "host2 says that packets waited, and none does", func(ctx context.Context) error {
		for _, n := range status(ctx, t).GetNodes() {
			if n.GetName() != "host2" {
				continue
			}
			for _, table := range n.GetTables() {
				if table.GetName() == "snat_waiting" && table.GetUsed() != 0 {
					return fmt.Errorf("%d packets wait", table.GetUsed())
				}
			}
		}
		now := reasons(ctx, t, "host2")
		if now["out_snat_waits"] <= before["out_snat_waits"] {
			return fmt.Errorf("out_snat_waits is %d, it was %d", now["out_snat_waits"], before["out_snat_waits"])
		}
		t.Logf("waited %d, dropped for want of room %d, for want of time %d", now["out_snat_waits"]-before["out_snat_waits"],
			now["out_snat_no_port"]-before["out_snat_no_port"], now["out_snat_expired"]-before["out_snat_expired"])
		return nil
	})
}

// unheard returns nil when a server has sent a SYN to a port a second time, because no reply
// arrived within a second (RFC 6298 section 2).
func unheard(vm string, port uint16) error {
	var table []byte
	if err := netdev.In(onVM(vm), func() (err error) { table, err = os.ReadFile("/proc/thread-self/net/tcp"); return err }); err != nil {
		return err
	}
	const remote, state, retransmitted, synSent = 2, 3, 6, "02" // proc_net_tcp.txt of the kernel
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > retransmitted && f[state] == synSent && strings.HasSuffix(f[remote], fmt.Sprintf(":%04X", port)) && strings.Trim(f[retransmitted], "0") != "" {
			return nil
		}
	}
	return errors.New("there is none")
}
