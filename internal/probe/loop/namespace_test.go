package loop

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// namespace creates a network namespace for the test, and returns its name.
func namespace(t *testing.T, suffix string) string {
	t.Helper()
	name := fmt.Sprintf("loop%d-%s", os.Getpid(), suffix)
	if err := netdev.CreateNamespace(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netdev.DeleteNamespace(name); err != nil {
			t.Error(err)
		}
	})
	return name
}

// run runs commands in a namespace, one a line.
func run(t *testing.T, name, commands string) {
	t.Helper()
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := netdev.In(name, func() error {
			out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", strings.TrimSpace(line), err, out)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// enter returns a function that moves its thread to a namespace.
func enter(name string) func() error {
	return func() error {
		f, err := os.Open(filepath.Join(netdev.NamespaceDir, name))
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
	}
}

// TestWordsOfRouters checks that each ICMP error of a router, or none, has its text, and that all
// of them are silence.
func TestWordsOfRouters(t *testing.T) {
	near, router := namespace(t, "near"), namespace(t, "router")
	run(t, near, `
		ip link add uplink type veth peer name downlink netns `+router+`
		ip addr add 10.9.0.1/24 dev uplink
		ip -6 addr add fd09::1/64 dev uplink nodad
		ip link set uplink up`)
	run(t, router, `
		sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0
		ip addr add 10.9.0.2/24 dev downlink
		ip -6 addr add fd09::2/64 dev downlink nodad
		ip link set downlink up
		ip route add unreachable 192.0.2.0/24
		ip route add prohibit 198.18.0.0/15
		ip route add blackhole 203.0.113.0/24
		ip -6 route add unreachable 2001:db8:1::/48
		ip -6 route add prohibit 2001:db8:2::/48
		ip -6 route add blackhole 2001:db8:3::/48`)
	run(t, near, `
		ip route add default via 10.9.0.2
		ip route add unreachable 192.0.3.0/24
		ip -6 route add default via fd09::2`)
	r := newRig(t, Options{Loops: 1, Enter: enter(near)})
	ask := func(kind string, timeout time.Duration, address string) probe.Target {
		c := check(kind, timeout, func(c *lb.Check) {
			if kind == lb.CheckUDP {
				c.Send = "x"
			}
		})
		return probe.Of(c, netip.MustParseAddr(address), 80)
	}
	// The links are up and neighbours are resolved once a connection was refused.
	for _, address := range []string{"10.9.0.2", "fd09::2"} {
		if a := r.ask(ask(lb.CheckTCP, long, address)); a.Words != "connection refused" {
			t.Fatalf("the router says %q", a.Words)
		}
	}
	var cases []wordsCase
	silent := func(kind string, timeout time.Duration, address, words string) {
		cases = append(cases, wordsCase{kind + " to " + address, ask(kind, timeout, address), probe.Bad, true, words})
	}
	// A router sends errors of its error routes to one source five times, then once a second
	// (net.ipv4.route.error_burst).
	const unreachable, ours, prohibited, nowhere = "192.0.2.1", "192.0.3.1", "198.18.0.1", "203.0.113.1"
	const unreachable6, prohibited6, nowhere6 = "2001:db8:1::1", "2001:db8:2::1", "2001:db8:3::1"
	for _, kind := range []string{lb.CheckTCP, lb.CheckHTTP, lb.CheckUDP, lb.CheckICMP} {
		nothing := "no connection within 50 ms"
		if kind == lb.CheckUDP || kind == lb.CheckICMP {
			nothing = "no answer within 50 ms"
		}
		silent(kind, long, unreachable, "host unreachable")
		silent(kind, long, ours, "host unreachable")
		silent(kind, short, nowhere, nothing)
		silent(kind, short, nowhere6, nothing)
		silent(kind, long, unreachable6, "network unreachable")
		silent(kind, long, prohibited6, "forbidden on the way")
	}
	silent(lb.CheckICMP, long, prohibited, "forbidden on the way")
	r.compareOnce(append(cases,
		wordsCase{"icmp to the router", ask(lb.CheckICMP, long, "10.9.0.2"), probe.Good, false, "answered"},
		wordsCase{"icmp to the router over IPv6", ask(lb.CheckICMP, long, "fd09::2"), probe.Good, false, "answered"},
	))
}

// TestOutOfPorts checks that probes without a free port are void, give the reason and are counted,
// and that they work again with free ports.
func TestOutOfPorts(t *testing.T) {
	name := namespace(t, "ports")
	const ports = 4
	if err := netdev.SetSysctls(name, []netdev.Sysctl{{Key: "net/ipv4/ip_local_port_range", Value: fmt.Sprint(40000, 40000+ports-1)}}); err != nil {
		t.Fatal(err)
	}
	var listener net.Listener
	if err := netdev.In(name, func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:80")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	r := newRig(t, Options{Loops: 1, Enter: enter(name)})
	hang := of(check(lb.CheckHTTP, time.Second, nil), listener.Addr().(*net.TCPAddr).AddrPort())
	var ids []uint32
	for range 20 {
		ids = append(ids, r.add(hang))
	}
	for range 2 {
		got := map[string]int{}
		r.Ask(ids)
		for range ids {
			got[(<-r.answers).Words]++
		}
		if got["connected, but no bytes within 1000 ms"] != ports || got["not asked: cannot assign requested address"] != len(ids)-ports {
			t.Errorf("got %v", got)
		}
	}
	if s := r.Stats(); s.Starved != uint64(2*(len(ids)-ports)) {
		t.Errorf("stats %+v", s)
	}
}

// TestOutOfDescriptors runs again in a process of its own, whose limit it lowers.
func TestOutOfDescriptors(t *testing.T) {
	const variable = "SHUNT_TEST_WEB"
	if web := os.Getenv(variable); web != "" {
		outOfDescriptors(t, netip.MustParseAddrPort(web))
		return
	}
	web := serve(t, "127.0.0.1:0", answers(200, nil))
	again := exec.Command(os.Args[0], "-test.run=^TestOutOfDescriptors$", "-test.count=1")
	again.Env = append(os.Environ(), variable+"="+web.String())
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func outOfDescriptors(t *testing.T, web netip.AddrPort) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	// leave limits the process to n more descriptors.
	leave := func(n uint64) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		next := uint64(f.Fd())
		if err := errors.Join(f.Close(), unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: next + n, Max: limit.Max})); err != nil {
			t.Fatal(err)
		}
	}
	few, none := newRig(t, Options{Loops: 1}), newRig(t, Options{Loops: 1})
	target := of(check(lb.CheckHTTP, long, nil), web)
	leave(0)
	for range 2 {
		if a := none.ask(target); a.Verdict != probe.Void || a.Words != "not asked: too many open files" {
			t.Errorf("without descriptors: %+v", a)
		}
	}
	if s := none.Stats(); s.Starved != 2 || s.Sockets != 0 {
		t.Errorf("stats %+v", s)
	}
	leave(5)
	var ids []uint32
	for range 200 {
		ids = append(ids, few.add(target))
	}
	few.Ask(ids)
	for range ids {
		if a := <-few.answers; a.Verdict != probe.Good {
			t.Errorf("with few descriptors: %+v", a)
		}
	}
	if s := few.Stats(); s.Starved == 0 || s.Sockets == 0 || s.Sockets > 5 {
		t.Errorf("stats %+v", s)
	}
	// A spare socket of one family is closed for another.
	six := of(check(lb.CheckTCP, long, nil), netip.AddrPortFrom(netip.IPv6Loopback(), 1))
	if a := few.ask(six); a.Verdict != probe.Bad || a.Words != "connection refused" {
		t.Errorf("over the other family: %+v", a)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if a := none.ask(target); a.Verdict != probe.Good {
		t.Errorf("with descriptors again: %+v", a)
	}
}
