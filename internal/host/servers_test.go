package host

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestServersAreLookedAtWhereTheyAre checks that the program is on the devices of servers with
// bindings. The state that the previous agent left stays until there is a plan and the ways to all
// of its servers are known.
func TestServersAreLookedAtWhereTheyAre(t *testing.T) {
	var tables dataplane.FakeHost
	var log strings.Builder
	var lost error
	c := clock.NewFake(time.Unix(1000, 0))
	a := New(&tables, settings(forwarding), &prober{}, c, nil)
	a.servers = newServers(&tables, func() ([]int, error) { return []int{2}, lost }, c, slog.New(slog.NewTextHandler(&log, nil)))
	first, second, beyond := binding("203.0.113.10", "10.0.0.1"), binding("203.0.113.10", "10.0.0.2"), binding("203.0.113.10", "10.0.0.3")
	apply := func(bindings ...plan.Binding) {
		t.Helper()
		check(t, a.Apply(context.Background(), plan.Plan{Bindings: bindings}))
	}
	ways := func(devices ...int) netdev.Ways {
		all := map[netip.Addr]netdev.NextHop{}
		for i, d := range devices {
			all[netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)})] = way4(d, 0)
		}
		return netdev.WaysOf(all)
	}
	calls := 0
	expect := func(when string, called bool, want ...int) {
		t.Helper()
		got, n := tables.Servers()
		if (n > calls) != called || !slices.Equal(got.Devices, want) {
			t.Errorf("%s: %d calls more, the last with devices %v, want %v, %v", when, n-calls, got.Devices, called, want)
		}
		calls = n
	}
	trouble := func(when, want string) {
		t.Helper()
		if got := a.Status().Error; !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: the node says %q, want %q", when, got, want)
		}
	}
	a.servers.changed(ways())
	expect("before a plan", false)
	apply(first, second)
	expect("ways are not known", false)
	a.servers.changed(ways(7))
	expect("one way is not known", false)
	a.servers.changed(ways(7, 8))
	expect("two servers", true, 7, 8)
	apply(first)
	expect("one left, and lingers", false, 7, 8)
	c.Advance(2 * linger)
	check(t, a.Expire())
	expect("one left", true, 7)
	a.servers.changed(ways(9))
	expect("a server that moved", true, 9)
	trouble("all is well", "")

	tables.BreakDevices(7)
	a.servers.changed(ways(7))
	expect("a device without room", true, 7)
	trouble("a device without room", "what servers send by some devices is not looked at: attach to interface 7: broken")
	tables.BreakDevices()
	a.servers.retry()
	expect("again", true, 7)
	trouble("again", "")
	a.servers.retry()
	expect("nothing to mend", false, 7)

	lost = errors.New("interface up0: there is none")
	a.servers.changed(ways(9))
	expect("which is the uplink is not known", false, 7)
	trouble("which is the uplink is not known", "there is none")
	lost = nil
	a.servers.retry()
	expect("and now it is", true, 9)

	a.servers.opens([]netip.Addr{second.DIP})
	expect("the way to one with SNAT is not known", false, 9)
	a.servers.changed(ways(9, 11))
	expect("one with SNAT", true, 9, 11)
	a.servers.opens(nil)
	expect("without SNAT", true, 9)

	apply(first, second, beyond)
	a.servers.changed(ways(9, 9, 2))
	expect("one behind the uplink", true, 9)
	apply()
	c.Advance(2 * linger)
	check(t, a.Expire())
	expect("the last one left", true)
	if n := strings.Count(log.String(), "interface 7: broken"); n != 1 {
		t.Errorf("the fault is logged %d times:\n%s", n, log.String())
	}
}

// TestSendersAreServersBehindDevices checks which address is allowed on which device, and for a VIP
// with which protocol and port.
func TestSendersAreServersBehindDevices(t *testing.T) {
	a, b := binding("203.0.113.10", "10.0.0.1"), binding("203.0.113.11", "10.0.0.2")
	owned, everything, many := b, b, b
	owned.Rewrite, everything.Rewrite, many.Rewrite = false, false, false
	everything.Key.Protocol, everything.Key.Port, everything.Key.PortEnd = lb.AnyProtocol, 0, 65535
	many.Key.Protocol, many.Key.Port, many.Key.PortEnd = lb.UDP, 70, 90
	uplink, local, vlan := binding("203.0.113.10", "10.0.0.3"), binding("203.0.113.10", "10.0.0.4"), binding("203.0.113.10", "10.0.0.5")
	dip := netip.MustParseAddr
	ways := netdev.WaysOf(map[netip.Addr]netdev.NextHop{
		a.DIP: way4(7, 0), b.DIP: way4(8, 0), uplink.DIP: way4(2, 0), local.DIP: {Ifindex: 1}, vlan.DIP: way4(7, 0x81000064),
		dip("10.0.0.6"): way4(8, 0),
	})
	vip := dip("203.0.113.11")
	want := []dataplane.HostSender{
		{Ifindex: 8, Address: dip("10.0.0.6")}, {Ifindex: 7, Address: a.DIP}, {Ifindex: 8, Address: b.DIP},
		{Ifindex: 8, Address: vip, Owned: true, Protocol: lb.TCP, Port: 80},
		{Ifindex: 8, Address: vip, Owned: true, Protocol: lb.AnyProtocol},
		{Ifindex: 8, Address: vip, Owned: true, Protocol: lb.UDP},
	}
	if got := sendersOf([]plan.Binding{a, a, b, owned, everything, many, uplink, local, vlan}, []netip.Addr{dip("10.0.0.6"), a.DIP}, ways, []int{7, 8}); !slices.Equal(got, want) {
		t.Errorf("senders\n%v, want\n%v", got, want)
	}
}

// TestUnderlayIsWhatThePlanKnows checks that the underlay has the Networks, and each address of
// machines and servers outside them once.
func TestUnderlayIsWhatThePlanKnows(t *testing.T) {
	inside, beyond := binding("203.0.113.10", "10.0.0.1"), binding("203.0.113.11", "192.168.0.2")
	prefix := netip.MustParsePrefix
	p := plan.Plan{
		Underlay: []netip.Prefix{prefix("10.0.0.0/8")}, Bindings: []plan.Binding{inside, beyond, beyond},
		Repairs: []plan.Repair{{Targets: []plan.Target{{DIP: netip.MustParseAddr("192.168.0.3"), Host: netip.MustParseAddr("10.0.0.9")}}}},
	}
	p.Node.Addresses = []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("2001:db8::1")}
	want := []netip.Prefix{prefix("10.0.0.0/8"), prefix("192.168.0.1/32"), prefix("2001:db8::1/128"), prefix("192.168.0.2/32"), prefix("192.168.0.3/32")}
	if got := underlay(&p); !slices.Equal(got, want) {
		t.Errorf("underlay %v, want %v", got, want)
	}
	a := New(&dataplane.FakeHost{}, settings(forwarding), &prober{}, clock.NewFake(time.Unix(1000, 0)), nil)
	a.guard = dataplane.GuardStrict
	p.VIPs, p.Bindings, p.Repairs, want = []netip.Prefix{prefix("203.0.113.0/24")}, p.Bindings[:2], nil, want[:4]
	check(t, a.Apply(context.Background(), p))
	state, _ := a.tables.(*dataplane.FakeHost).State()
	if state.Guard != dataplane.GuardStrict || !slices.Equal(state.Underlay, want) || !slices.Equal(state.VIPs, p.VIPs) {
		t.Errorf("guard %d, underlay %v, VIPs %v", state.Guard, state.Underlay, state.VIPs)
	}
}
