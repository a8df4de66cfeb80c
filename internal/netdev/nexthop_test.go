package netdev

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ownNamespace runs the calling test again as a process in its own network namespace and returns
// true there, so that subscriptions and sockets of other threads belong to it as well.
func ownNamespace(t *testing.T) bool {
	t.Helper()
	const mark = "SHUNT_TEST_OWN_NAMESPACE"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mark+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("in its own namespace: %v\n%s", err, out)
	}
	return false
}

// ip runs iproute2; namespace "" is the current one.
func ip(t *testing.T, namespace, args string) {
	t.Helper()
	words := strings.Fields(args)
	if namespace != "" {
		words = append([]string{"-n", namespace}, words...)
	}
	if out, err := exec.Command("ip", words...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(words, " "), err, out)
	}
}

// flushNeighbours deletes the neighbour entries of a device. Next hops that are followed are
// resolved again immediately, so that ip lists such entries again and fails after ten rounds, when
// each entry of the first round has been deleted.
func flushNeighbours(t *testing.T, device string) {
	t.Helper()
	if out, err := exec.Command("ip", "neigh", "flush", "dev", device).CombinedOutput(); err != nil && !strings.Contains(string(out), "Flush not complete") {
		t.Fatalf("flush the neighbor entries of %s: %v\n%s", device, err, out)
	}
}

// neighbourNamespace creates a namespace with one end of a veth pair; the other end, "up0", is
// here.
func neighbourNamespace(t *testing.T) string {
	name := fmt.Sprintf("netdev-%d", os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("make namespace: %v\n%s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
	ip(t, "", "link add up0 type veth peer name eth0 netns "+name)
	ip(t, "", "addr add 10.0.0.1/24 dev up0")
	ip(t, "", "addr add 2001:db8::1/64 dev up0 nodad")
	ip(t, "", "link set up0 up mtu 9000")
	ip(t, name, "addr add 10.0.0.2/24 dev eth0")
	ip(t, name, "addr add 10.0.0.3/24 dev eth0")
	ip(t, name, "addr add 2001:db8::2/64 dev eth0 nodad")
	ip(t, name, "link set eth0 address 02:00:00:00:00:02 mtu 9000 up")
	return name
}

func TestNextHopsFollowTheKernel(t *testing.T) {
	if !ownNamespace(t) {
		return
	}
	peer := neighbourNamespace(t)
	ip(t, "", "route add 10.20.0.0/16 via 10.0.0.2 mtu 1400")
	ip(t, "", "route add 2001:db8:20::/48 via 2001:db8::2")

	up, err := FindInterface("up0")
	if err != nil {
		t.Fatal(err)
	}
	if up.Driver != "veth" || up.MTU != 9000 || !up.Up || len(up.Addresses) != 2 {
		t.Errorf("up0: got %+v", up)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	maps := make(chan map[netip.Addr]NextHop, 100)
	hops := NewNextHops()
	ended := make(chan error, 1)
	go func() { ended <- hops.Run(ctx, func(m map[netip.Addr]NextHop) { maps <- m }) }()
	until := func(what string, ok func(map[netip.Addr]NextHop) bool) {
		t.Helper()
		var last map[netip.Addr]NextHop
		for {
			select {
			case last = <-maps:
				if ok(last) {
					return
				}
			case err := <-ended:
				t.Fatalf("%s: ended with %v, last %v", what, err, last)
			}
		}
	}

	far4, far6 := netip.MustParseAddr("10.20.1.11"), netip.MustParseAddr("2001:db8:20:1::11")
	near, nowhere := netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("192.0.2.1")
	mac := [6]byte{2, 0, 0, 0, 0, 2}
	hops.Want([]netip.Addr{far6, far4, near, nowhere, far4})
	from4, from6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")
	until("resolve both families", func(m map[netip.Addr]NextHop) bool {
		return len(m) == 4 && m[far4] == NextHop{mac, up.Index, 0, 1400, from4, up.MAC, true} &&
			m[far6] == NextHop{mac, up.Index, 0, 9000, from6, up.MAC, true} &&
			m[near] == NextHop{mac, up.Index, 0, 9000, from4, up.MAC, true} && m[nowhere] == NextHop{}
	})

	ip(t, "", "route add 192.0.2.0/24 via 10.0.0.3")
	until("follow a new route", func(m map[netip.Addr]NextHop) bool { return m[nowhere].Resolved })

	ip(t, peer, "link set eth0 down")
	ip(t, peer, "link set eth0 address 02:00:00:00:00:99")
	ip(t, peer, "link set eth0 up")
	flushNeighbours(t, "up0")
	until("follow a changed neighbour", func(m map[netip.Addr]NextHop) bool { return m[far4].MAC[5] == 0x99 })

	hops.Want([]netip.Addr{near})
	until("forget", func(m map[netip.Addr]NextHop) bool { return len(m) == 1 })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestMissingInterfaceNamesThoseThere(t *testing.T) {
	if !ownNamespace(t) {
		return
	}
	_, err := FindInterface("eth7")
	const want = "interface eth7: there is none; this machine has lo"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s…", err, want)
	}
}

// TestSameDestinationsAreNotReadAgain: destinations that are already wanted are not read again,
// because the kernel reports changes.
func TestSameDestinationsAreNotReadAgain(t *testing.T) {
	hops := NewNextHops()
	a, b := netip.MustParseAddr("10.20.1.11"), netip.MustParseAddr("10.20.2.11")
	poked := func() bool {
		select {
		case <-hops.poke:
			return true
		default:
			return false
		}
	}
	for i, c := range []struct {
		want  []netip.Addr
		reads bool
	}{{[]netip.Addr{a, b}, true}, {[]netip.Addr{b, a, b}, false}, {[]netip.Addr{a}, true}, {nil, true}, {nil, false}} {
		hops.Want(c.want)
		if got := poked(); got != c.reads {
			t.Errorf("step %d: there is something to read: %v", i, got)
		}
	}
}
