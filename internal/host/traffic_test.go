package host

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
)

// agentEnv makes the test binary an agent that can be killed.
const agentEnv = "SHUNT_TEST_HOST_AGENT"

func TestMain(m *testing.M) {
	if namespace := os.Getenv(agentEnv); namespace != "" {
		os.Exit(beAgent(namespace, os.Getenv(agentEnv+"_DIR")))
	}
	os.Exit(m.Run())
}

// beAgent opens the tables, reports that, and lives until its parent has ended.
func beAgent(namespace, dir string) int {
	h, err := openTables(namespace, dir, 1500)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer h.Close()
	a, stop, err := guardedAgent(namespace, h, 1500, dataplane.GuardStrict)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer stop()
	for len(a.servers.devicesOn()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := probeDevices(h, namespace, "vm0"); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	return 0
}

// startServers starts servers on the server's and the host's addresses.
func (n *testNet) startServers() {
	n.t.Helper()
	n.serve(n.server, serverPort)
	n.serve(n.server, vipPort)
	n.serve(n.host, serverPort)
	for _, r := range routes {
		switch {
		case !r.rewrite:
			n.echoUDP(n.server, r.vip, vipPort)
		case r.dip == host4 || r.dip == host6:
			n.echoUDP(n.host, r.dip, serverPort)
		}
	}
	for _, port := range []int{serverPort, vipPort} {
		n.echoUDP(n.server, dip4, port)
		n.echoUDP(n.server, dip6, port)
	}
}

// TestTraffic sends real TCP and UDP through every kind of tunnel, with checksums in every state
// that the programs can receive. If a device after the programs has no transmit checksums, the
// kernel completes partial ones and splits GSO packets after the programs changed them, and the
// receiver verifies every segment.
func TestTraffic(t *testing.T) {
	const small, large = 1 << 20, 100 << 20
	for _, mode := range []struct {
		name             string
		c0, up0, vm0, v0 bool // transmit checksums
		gro              bool
		joined           bool // packets of several segments reach the programs
		size             int
		mtu              int // 0: 1500
	}{
		{"GSO and partial checksums, finished behind the programs", true, false, false, true, false, true, large, 0},
		{"whole checksums, one segment a packet", false, true, true, false, false, false, small, 0},
		{"whole checksums, joined by GRO", false, false, false, false, true, true, small, 0},
		{"all offloads", true, true, true, true, true, true, large, 0},
		{"jumbo, all offloads", true, true, true, true, true, true, large, 9000},
		{"jumbo, joined by GRO", false, false, false, false, true, true, small, 9000},
	} {
		t.Run(mode.name, func(t *testing.T) {
			n := newTestNet(t, cmp.Or(mode.mtu, 1500))
			n.offloads(n.client, "c0", mode.c0, mode.gro)
			n.offloads(n.host, "up0", mode.up0, mode.gro)
			n.offloads(n.host, "vm0", mode.vm0, mode.gro)
			n.offloads(n.server, "v0", mode.v0, mode.gro)
			n.startServers()
			h := n.attach()
			for i, r := range routes {
				n.t = t
				size := mode.size
				if i > 1 {
					size = min(size, 4<<20)
				}
				n.exchange(t, r, size)
			}
			c, err := h.Counters()
			check(t, err)
			if first := c.Bindings[0]; (first.Bytes/first.Packets > uint64(n.mtu)) != mode.joined {
				t.Errorf("%s: %d bytes in %d packets, want GSO packets: %v", bindingText(first), first.Bytes, first.Packets, mode.joined)
			}
			for reason, count := range c.Reasons {
				switch reason {
				case "pass_not_ours", "in_delivered", "in_untouched", "out_returned", "mss_clamped":
				// the client may use one port towards two VIPs of one server
				case "client_port_mapped":
				default:
					if count != 0 {
						t.Errorf("%s counted %d", reason, count)
					}
				}
			}
		})
	}
}

// bindingText returns the name of a binding.
func bindingText(b dataplane.BindingCounter) string {
	return fmt.Sprintf("%s %s", b.Binding.Key.VIP, b.Binding.Key.Protocol)
}

// exchange transfers data over TCP and UDP by one route.
func (n *testNet) exchange(t *testing.T, r route, size int) {
	t.Helper()
	start := time.Now()
	c := n.dial("tcp", r.vip, 0)
	if got, want := maxSegment(t, c), r.mss+n.mtu-1500; got != want {
		t.Errorf("%s: client may send segments of %d, want %d", r.name, got, want)
	}
	if err := transfer(c, size); err != nil {
		t.Errorf("%s: TCP: %v", r.name, err)
	}
	c.Close()
	t.Logf("%s: %d MiB each way in %v", r.name, size>>20, time.Since(start).Round(time.Millisecond))
	u := n.dial("udp", r.vip, 0)
	defer u.Close()
	for i := range 10 {
		if err := ping(u, i); err != nil {
			t.Errorf("%s: UDP: %v", r.name, err)
			return
		}
	}
}

// ping sends a datagram and waits for its echo.
func ping(u net.Conn, i int) error {
	if err := u.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	out := append(binary.BigEndian.AppendUint64(nil, uint64(i)), pattern[:100+i%1000]...)
	if _, err := u.Write(out); err != nil {
		return err
	}
	in := make([]byte, 2000)
	k, err := u.Read(in)
	if err != nil {
		return fmt.Errorf("datagram %d: %w", i, err)
	}
	if string(in[:k]) != string(out) {
		return fmt.Errorf("datagram %d: echo differs", i)
	}
	return nil
}

// TestCollision checks that connections from one client port to two VIPs with one server port
// coexist.
func TestCollision(t *testing.T) {
	n := newTestNet(t, 1500)
	n.startServers()
	h := n.attach()
	first := n.dial("tcp4", "203.0.113.10", 40001)
	second := n.dial("tcp4", "203.0.113.77", 40001)
	for range 3 {
		for _, c := range []net.Conn{first, second} {
			if err := transfer(c, 1<<20); err != nil {
				t.Fatal(err)
			}
		}
	}
	if c, err := h.Counters(); err != nil || c.Reasons["client_port_mapped"] == 0 {
		t.Errorf("client_port_mapped not counted (%v)", err)
	}
}

// agentProcess starts an agent in a process of its own.
func (n *testNet) agentProcess() (kill func()) {
	n.t.Helper()
	self, err := os.Executable()
	check(n.t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), agentEnv+"="+n.host, agentEnv+"_DIR="+n.dir)
	stdin, err := cmd.StdinPipe()
	check(n.t, err)
	stdout, err := cmd.StdoutPipe()
	check(n.t, err)
	check(n.t, cmd.Start())
	kill = func() {
		cmd.Process.Kill()
		stdin.Close()
		cmd.Wait()
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		kill()
		n.t.Fatalf("agent says %q, %v", line, err)
	}
	return kill
}

// TestRestart kills the agent and starts another, repeatedly, during a TCP transfer and UDP in
// lockstep: a lost datagram is never echoed, and fails the test. Each agent replaces the programs,
// those of servers' devices too.
func TestRestart(t *testing.T) {
	n := newTestNet(t, 1500)
	n.startServers()
	kill := n.agentProcess()
	stop := make(chan struct{})
	results := make(chan error, 2)
	tcp, udp := n.dial("tcp", "203.0.113.10", 0), n.dial("udp", "2001:db8:f::10", 0)
	until := func(f func(i int) error) {
		for i := 0; ; i++ {
			select {
			case <-stop:
				results <- nil
				return
			default:
			}
			if err := f(i); err != nil {
				results <- err
				return
			}
		}
	}
	go until(func(int) error { return transfer(tcp, 1<<20) })
	go until(func(i int) error { return ping(udp, i) })
	for range 3 {
		kill()
		// a new connection without an agent
		check(t, transfer(n.dial("tcp", "203.0.113.20", 0), 1<<20))
		kill = n.agentProcess()
	}
	kill()
	close(stop)
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}
