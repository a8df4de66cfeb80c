package dataplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/dataplane/encap"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// bakedNet is client c0 - up0 host vm0 - v0 server, each in a namespace, whose kernels know nothing of cookies; the client's packets to VIPs go into tunnels
// as muxes would send them.
type bakedNet struct {
	t                    *testing.T
	client, host, server string
	h                    *Host
	epochs               []uint32
}

const (
	bakedGateway4, bakedGateway6 = "198.51.100.1", "2001:db8:100::1"
	bakedPatience                = 30 * time.Second
)

// newBakedNet makes one whose servers have timestamps as net.ipv4.tcp_timestamps says, and whose stamps have this many bits of time; 0: as ever.
func newBakedNet(t *testing.T, timeBits uint32, timestamps string) *bakedNet {
	t.Helper()
	base := fmt.Sprintf("baked-%d-%d-", os.Getpid(), hostEnvs.Add(1))
	n := &bakedNet{t: t, client: base + "client", host: base + "host", server: base + "server"}
	ns := map[string]*netdev.Namespace{}
	for _, name := range []string{n.client, n.host, n.server} {
		must(t, netdev.CreateNamespace(name))
		t.Cleanup(func() { netdev.DeleteNamespace(name) })
		must(t, netdev.SetSysctls(name, []netdev.Sysctl{
			{Key: "net/ipv6/conf/default/accept_dad", Value: "0"}, {Key: "net/ipv6/conf/default/dad_transmits", Value: "0"}}))
		o, err := netdev.OpenNamespace(name)
		must(t, err)
		t.Cleanup(o.Close)
		must(t, o.SetUp("lo", true))
		ns[name] = o
	}
	c, h, s := ns[n.client], ns[n.host], ns[n.server]
	must(t, netdev.AddVeth(netdev.VethEnd{Namespace: c, Name: "c0"}, netdev.VethEnd{Namespace: h, Name: "up0"}, 1500))
	must(t, netdev.AddVeth(netdev.VethEnd{Namespace: h, Name: "vm0"}, netdev.VethEnd{Namespace: s, Name: "v0"}, 1500))
	for _, a := range []struct {
		at            *netdev.Namespace
		dev, addr     string
		to, via, from string // a route
	}{
		{at: c, dev: "c0", addr: client4 + "/24"}, {at: c, dev: "c0", addr: client6 + "/64"},
		{at: h, dev: "up0", addr: bakedGateway4 + "/24"}, {at: h, dev: "up0", addr: bakedGateway6 + "/64"},
		{at: h, dev: "up0", addr: host4 + "/32"}, {at: h, dev: "up0", addr: host6 + "/128"},
		{at: h, dev: "vm0", addr: "10.20.1.254/24"}, {at: h, dev: "vm0", addr: "2001:db8:20:1::254/64"},
		{at: s, dev: "v0", addr: dip4 + "/24"}, {at: s, dev: "v0", addr: dip6 + "/64"},
	} {
		must(t, a.at.AddAddress(a.dev, netip.MustParsePrefix(a.addr)))
	}
	route := func(at *netdev.Namespace, dev, via string, to ...string) {
		for _, p := range to {
			must(t, at.AddRoute(netdev.Route{Destination: netip.MustParsePrefix(p), Device: dev, Via: netip.MustParseAddr(via)}))
		}
	}
	route(c, "c0", bakedGateway4, "203.0.113.0/24", "10.20.1.0/24")
	route(c, "c0", bakedGateway6, "2001:db8:f::/64", "2001:db8:20:1::/64")
	route(s, "v0", "10.20.1.254", "0.0.0.0/0")
	route(s, "v0", "2001:db8:20:1::254", "::/0")
	must(t, netdev.SetSysctls(n.host, []netdev.Sysctl{{Key: "net/ipv4/ip_forward", Value: "1"}, {Key: "net/ipv6/conf/all/forwarding", Value: "1"}}))
	n.sysctl(n.server, "net/ipv4/tcp_timestamps", timestamps)
	n.tunnel()
	dir := filepath.Join(bpffsRoot, "test-"+n.host)
	t.Cleanup(func() { must(t, DetachHost(dir)) })
	must(t, netdev.In(n.host, func() error {
		i, err := net.InterfaceByName("up0")
		if err != nil {
			return err
		}
		n.h, err = OpenHost(HostOptions{Ifindex: i.Index, Dir: dir, Flows: MinHostFlows, testTimeBits: timeBits})
		return err
	}))
	t.Cleanup(func() { n.h.Close() })
	n.rotate(1)
	return n
}

func (n *bakedNet) sysctl(namespace, key, value string) {
	n.t.Helper()
	must(n.t, netdev.SetSysctls(namespace, []netdev.Sysctl{{Key: key, Value: value}}))
}

// tunnel puts the stand-in for a mux on the client's device.
func (n *bakedNet) tunnel() {
	n.t.Helper()
	tunnels := map[netip.Addr]encap.Tunnel{
		netip.MustParseAddr(vip4): {Source: netip.MustParseAddr(source4), Destination: netip.MustParseAddr(dip4), Member: plan.NoMember},
		netip.MustParseAddr(vip6): {Source: netip.MustParseAddr(source6), Destination: netip.MustParseAddr(dip6), Member: plan.NoMember},
	}
	must(n.t, netdev.In(n.client, func() error {
		i, err := net.InterfaceByName("c0")
		if err != nil {
			return err
		}
		e, err := encap.Attach(i.Index, tunnels)
		if err == nil {
			n.t.Cleanup(func() { e.Close() })
		}
		return err
	}))
}

// rotate makes keys of these epochs live; the last one stamps. None: packets get no cookies.
func (n *bakedNet) rotate(epochs ...uint32) {
	n.t.Helper()
	s := HostState{TunnelSources: tunnelSources, MTU: 1500}
	for _, b := range []plan.Binding{bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.TCP, vip6, dip6, dip6, true)} {
		s.Bindings = append(s.Bindings, baked(b))
		if len(epochs) > 0 {
			s.Cookies = append(s.Cookies, bakedKeys(b.Key.VIP.String(), epochs...))
		}
	}
	must(n.t, n.h.Apply(s))
	n.epochs = epochs
}

// listen is a server on port 8080 of its namespace.
func (n *bakedNet) listen() *net.TCPListener {
	n.t.Helper()
	var l net.Listener
	must(n.t, netdev.In(n.server, func() (err error) {
		var c net.ListenConfig
		c.SetMultipathTCP(false)
		l, err = c.Listen(context.Background(), "tcp", ":8080")
		return err
	}))
	n.t.Cleanup(func() { l.Close() })
	must(n.t, l.(*net.TCPListener).SetDeadline(time.Now().Add(10*bakedPatience)))
	return l.(*net.TCPListener)
}

// bakedPair is the two ends of a connection.
type bakedPair struct {
	t              *testing.T
	client, server *net.TCPConn
}

// connect opens a connection from a port, 0: any, to a VIP.
func (n *bakedNet) connect(l *net.TCPListener, vip string, from int) *bakedPair {
	n.t.Helper()
	p := &bakedPair{t: n.t}
	d := net.Dialer{FallbackDelay: -1, Timeout: bakedPatience, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if control := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }); control != nil {
			return control
		}
		return err
	}}
	d.SetMultipathTCP(false)
	if from != 0 {
		d.LocalAddr = &net.TCPAddr{Port: from}
	}
	must(n.t, netdev.In(n.client, func() error {
		c, err := d.Dial("tcp", net.JoinHostPort(vip, "80"))
		if err == nil {
			p.client = c.(*net.TCPConn)
		}
		return err
	}))
	s, err := l.AcceptTCP()
	must(n.t, err)
	p.server = s
	n.t.Cleanup(func() { p.client.Close(); p.server.Close() })
	p.patient()
	return p
}

func (p *bakedPair) patient() {
	for _, c := range []*net.TCPConn{p.client, p.server} {
		must(p.t, c.SetDeadline(time.Now().Add(4*bakedPatience)))
	}
}

// pass writes bytes at one end and reads them at the other.
func (p *bakedPair) pass(from, to *net.TCPConn, size int) {
	p.t.Helper()
	sent, got := make([]byte, size), make([]byte, size)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := from.Write(sent)
		failed <- err
	}()
	if _, err := io.ReadFull(to, got); err != nil {
		p.t.Fatalf("read %d bytes: %v", size, err)
	}
	must(p.t, <-failed)
	if !slices.Equal(sent, got) {
		p.t.Fatal("other bytes came")
	}
}

func (p *bakedPair) push(size int) { p.t.Helper(); p.pass(p.server, p.client, size) }
func (p *bakedPair) pull(size int) { p.t.Helper(); p.pass(p.client, p.server, size) }

// bakedInfo is the beginning of struct tcp_info (linux/tcp.h), of which the library knows no bit fields.
type bakedInfo struct {
	_       [5]uint8
	Options uint8
	Scales  uint8 // of the window: sent, received
	_       [9]uint8
	SndMSS  uint32
	_       [12]uint32
	RTT     uint32 // microseconds
}

// info is what a kernel says of its end.
func (p *bakedPair) info(c *net.TCPConn) (out bakedInfo) {
	p.t.Helper()
	raw, err := c.SyscallConn()
	must(p.t, err)
	size := uint32(unsafe.Sizeof(out))
	must(p.t, raw.Control(func(fd uintptr) {
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.IPPROTO_TCP, unix.TCP_INFO, uintptr(unsafe.Pointer(&out)), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			err = errno
		}
	}))
	must(p.t, err)
	return out
}

// kernelCounters are TCP's of a namespace, by name.
func (n *bakedNet) kernelCounters(namespace string) map[string]uint64 {
	n.t.Helper()
	out := map[string]uint64{}
	must(n.t, netdev.In(namespace, func() error {
		for _, file := range []string{"/proc/thread-self/net/netstat", "/proc/thread-self/net/snmp"} {
			f, err := os.Open(file)
			if err != nil {
				return err
			}
			defer f.Close()
			for s := bufio.NewScanner(f); s.Scan(); {
				names := strings.Fields(s.Text())
				s.Scan()
				for i, value := range strings.Fields(s.Text()) {
					if v, err := strconv.ParseUint(value, 10, 64); err == nil && strings.HasPrefix(names[0], "Tcp") {
						out[names[i]] = v
					}
				}
			}
		}
		return nil
	}))
	return out
}

// onOneCPU keeps the threads of the process, and those that they start, on one CPU until the test ends: segments then keep their order. Where the hypervisor stops one of two CPUs
// for a while, segments that wait there come milliseconds behind later ones, and a kernel calls them old, whoever made their timestamps.
func onOneCPU(t testing.TB) {
	t.Helper()
	var before, one unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &before))
	one.Set(0)
	set := func(cpus *unix.CPUSet) {
		threads, err := os.ReadDir("/proc/self/task")
		must(t, err)
		for _, thread := range threads {
			id, err := strconv.Atoi(thread.Name())
			must(t, err)
			if err := unix.SchedSetaffinity(id, cpus); err != nil && !errors.Is(err, unix.ESRCH) {
				t.Fatal(err)
			}
		}
	}
	set(&one)
	t.Cleanup(func() { set(&before) })
}

// neverCounted are what kernels count of segments that they take for old, for answers to nothing of theirs, or for broken.
var neverCounted = []string{"PAWSEstab", "PAWSActive", "TSEcrRejected", "InCsumErrors"}

// clean fails when a kernel rejected a segment for its timestamps or its checksum, but for what a test bears.
func (n *bakedNet) clean(but ...string) {
	n.t.Helper()
	for _, namespace := range []string{n.client, n.server} {
		counters := n.kernelCounters(namespace)
		for _, name := range neverCounted {
			if v, known := counters[name]; v != 0 && !slices.Contains(but, name) || !known {
				n.t.Errorf("%s counts %d %s (known: %v)", namespace, v, name, known)
			}
		}
	}
}

// counted are the host's reasons since a snapshot; a nil one: since ever.
func (n *bakedNet) counted(before map[string]uint64) map[string]uint64 {
	n.t.Helper()
	c, err := n.h.Counters()
	must(n.t, err)
	out := maps.Clone(c.Reasons)
	for name, v := range before {
		if out[name] -= v; out[name] == 0 {
			delete(out, name)
		}
	}
	return out
}

// lose makes a device of a namespace lose one of so many packets that come in, until the test ends.
func (n *bakedNet) lose(namespace, dev string, oneOf int32) {
	n.t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.FnGetPrandomU32.Call(),
		asm.Mod.Imm32(asm.R0, oneOf),
		asm.JNE.Imm32(asm.R0, 0, "pass"),
		asm.Mov.Imm(asm.R0, verdictDrop),
		asm.Return(),
		asm.Mov.Imm(asm.R0, verdictNext).WithSymbol("pass"),
		asm.Return(),
	}})
	must(n.t, err)
	n.t.Cleanup(func() { p.Close() })
	must(n.t, netdev.In(namespace, func() error {
		i, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: i.Index, Program: p, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
		if err == nil {
			n.t.Cleanup(func() { l.Close() })
		}
		return err
	}))
}

// forget makes the host lose the clocks of all flows.
func (n *bakedNet) forget() {
	n.h.flows.all(tagTick(n.h.now()), func(_ flowTag, r *hostFlowRecord) { r.Stamped = 0 })
}
