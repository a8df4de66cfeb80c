package lab_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// Servers of TestCookieStacks, named by their special setting.
const (
	vmWithout      = "host1-vm1" // net.ipv4.tcp_timestamps=0
	vmUsual        = "host2-vm1" // 1
	vmClock        = "host3-vm1" // 2: without an offset for each connection
	vmSYNCookies   = "host1-vm2" // net.ipv4.tcp_syncookies=2
	vmMicroseconds = "host2-vm2" // tcp_usec_ts of its routes to the client
	vmLossy        = "host3-vm2" // loses one of a hundred packets, as does the client
)

// cookieWeb returns a service of nginx behind a VIP of each family, with cookies.
func cookieWeb(name string, number int, backends ...string) service {
	return service{
		name: "stack-" + name, number: number, protocol: "tcp", port: 80, dipPort: nginxPort, backends: backends, health: patientHTTP,
		more: "  affinity: cookie\n  scheduler: round-robin\n",
	}
}

// TestCookieStacks has unmodified kernels and an unmodified nginx behind managers, muxes and hosts'
// agents, with cookies. Each of the cases T1 to T15 of cookies is a property of the model
// (internal/cookie, TestEVC…), is tested with packets made by hand or with real kernels around one
// host's programs (internal/dataplane, TestCookieLive…), and is tested here if a complete network
// can test it. At the end no kernel has dropped a segment because of its timestamp (T5). H is half
// a turn of the clock, 32.8 s.
//
//	T1   silence, then a push       here: both ways, H/2 to 2H and 70 s. TestCookieLiveSilence:
//	                                to 5H of a fast clock. TestEVCSilence: to 10H
//	T2   black hole                 here: 0.2, 2, 20 s, which is 1, 10, 100 of the first timeouts.
//	                                TestEVCBlackHole
//	T3   SYN-ACK retransmitted      here: for 33 s, by two servers. TestEVCAnswersRepeated: 63 s,
//	                                when kernels have given up
//	T4   SYN cookies forced         here, TestCookieLiveSYNCookies
//	T5   PAWSEstab and the others   here, TestCookiesOutliveEverything, all TestCookieLive…
//	T6   round trips, loss          here: 1 % lost each way, against the same without cookies.
//	                                TestCookieLiveLoss; TestCookieLive: round trips
//	T7   TIME-WAIT on both sides    here: another server has a higher or lower cookie.
//	                                TestCookieLiveTimeWait: another key has
//	T8   a new cookie each 50 ms    here, TestCookieKeysFollow: as fast as managers let keys follow
//	                                each other. Each 50 ms: TestCookieLiveRemint, TestEVCRemints
//	T9   state lost                 here: shunt host --stop. TestCookieLiveForgotten,
//	                                TestEVCStateLost
//	T10  GSO, GRO                   here: packets of several segments at the server, both ways.
//	                                TestCookieLive
//	T11  odd options                here, by segments made by hand: orders, odd places, three SACK
//	                                blocks, none, wrong lengths. TestTimestampsAreFound,
//	                                TestHostCookieOptions
//	T12  tcp_timestamps 0, 1, 2     here, TestCookieLive
//	T13  model and strict client    TestEVC; here a strict client made by hand, through silences of
//	                                up to 70 s
//	T14  changed bits               here, on connections made by hand: each bit. TestChangedBits,
//	                                TestCookieChangedBits, TestForgedCookieOdds: the odds
//	T15  another key under load     here, TestCookieLiveRemint, TestCookiesOutliveEverything
//
// In addition: tcp_usec_ts by route, and the agent of a host killed under load.
func TestCookieStacks(t *testing.T) {
	logsOnFailure(t, shared)
	odd := oddTimestamps(t)
	for vm, value := range map[string]string{vmWithout: "0", vmUsual: "1", vmClock: "2"} {
		vmSysctl(t, vm, "net/ipv4/tcp_timestamps", value)
	}
	vmSysctl(t, vmSYNCookies, "net/ipv4/tcp_syncookies", "2")
	microseconds(t, vmMicroseconds)
	s := &stacks{dir: startNginx(t, everyVM...), client: listen(t, "client1", lab.Uplink), servers: map[string]*frames{}}
	for _, vm := range []string{vmWithout, vmUsual, vmClock, vmMicroseconds} {
		s.servers[vm] = listen(t, vm, lab.Uplink)
	}
	s.plain = map[string]service{
		vmWithout: cookieWeb("without", 190, vmWithout), vmUsual: cookieWeb("usual", 191, vmUsual), vmClock: cookieWeb("clock", 192, vmClock),
		vmSYNCookies: cookieWeb("syn", 193, vmSYNCookies), vmMicroseconds: cookieWeb("usec", 194, vmMicroseconds), vmLossy: cookieWeb("lossy", 195, vmLossy),
	}
	s.hole, s.late, s.both, s.all = cookieWeb("hole", 196, vmUsual), cookieWeb("late", 197, vmUsual, vmClock), cookieWeb("both", 198, vmUsual, vmClock), cookieWeb("all", 199, vmUsual, vmClock, vmSYNCookies)
	services := []service{s.hole, s.late, s.both, s.all}
	for _, one := range s.plain {
		services = append(services, one)
	}
	for _, one := range services {
		one.apply(t)
	}
	for _, one := range services {
		one.awaitHops(t, shared.Topology.Muxes)
		one.awaitAlive(t, len(one.backends))
		awaitKeys(t, one.vips(), "steady")
	}
	knowHandmade(t)
	t.Run("odd options", s.oddOptions)
	t.Run("changed bits", s.changedBits)
	t.Run("together", func(t *testing.T) {
		for _, part := range []struct {
			name string
			test func(*testing.T)
		}{
			{"black hole", s.blackHole}, {"silence", s.silence}, {"strict client", s.strict}, {"TIME-WAIT", s.timeWait}, {"late SYN-ACK", s.lateAnswer}, {"timestamps", s.timestamps},
			{"SYN cookies", s.synCookies}, {"microseconds", s.microseconds}, {"another key", s.anotherKey}, {"loss", s.loss},
		} {
			t.Run(part.name, func(t *testing.T) {
				t.Parallel()
				part.test(t)
			})
		}
	})
	t.Run("agent killed", s.agentKilled)
	t.Run("state lost", s.stateLost)
	for what, n := range oddTimestamps(t) {
		if n != odd[what] {
			t.Errorf("%s is %d, it was %d", what, n, odd[what])
		}
	}
}

// stacks are the services of TestCookieStacks.
type stacks struct {
	dir     string // where nginx puts uploads
	client  *frames
	servers map[string]*frames // of those whose timestamps are compared
	plain   map[string]service // of one server each
	// hole loses all packets for a while, late its SYN-ACKs. both has two servers, all three.
	hole, late, both, all service
}

// vmSysctl changes a setting of a VM's kernel until the test ends.
func vmSysctl(t *testing.T, vm, key, value string) {
	t.Helper()
	before, err := netdev.ReadSysctl(inNode(vm), key)
	if err != nil {
		t.Fatal(err)
	}
	set := func(value string) error {
		return netdev.SetSysctls(inNode(vm), []netdev.Sysctl{{Key: key, Value: value}})
	}
	if err := set(value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set(before); err != nil {
			t.Error(err)
		}
	})
}

// microseconds makes a VM's kernel count microseconds in timestamps for client1, until the test
// ends.
func microseconds(t *testing.T, vm string) {
	t.Helper()
	node, err := shared.Topology.Find(vm)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netdev.OpenNamespace(inNode(vm))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	client := lab.ClientAddresses(1)
	for _, r := range []netdev.Route{
		{Destination: netip.PrefixFrom(client.V4.Addr(), 32), Via: lab.HostAddresses(node.Index).V4.Addr()},
		{Destination: netip.PrefixFrom(client.V6.Addr(), 128), Via: netip.MustParseAddr("fe80::1")},
	} {
		r.Device, r.Features = lab.Uplink, netdev.FeatureMicroseconds
		if err := ns.AddRoute(r); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			family := "-4"
			if r.Destination.Addr().Is6() {
				family = "-6"
			}
			runIP(t, inNode(vm), family, "route", "del", r.Destination.String())
		})
	}
}

// drops adds an nftables rule for incoming packets to a node, in a separate table, until the
// returned function is called or the test ends.
func drops(t *testing.T, node, table string, rules ...string) (stop func()) {
	t.Helper()
	nft := func(text string) error {
		return netdev.In(inNode(node), func() error {
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(text)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("nft on %s: %w: %s", node, err, out)
			}
			return nil
		})
	}
	text := "table inet " + table + " {\n chain in {\n  type filter hook input priority 0;\n"
	for _, r := range rules {
		text += "  " + r + "\n"
	}
	if err := nft(text + " }\n}\n"); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			if err := nft("delete table inet " + table + "\n"); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// fromVIPs returns nftables rules for packets of a service's VIPs.
func (s service) fromVIPs(then string) (rules []string) {
	for i, vip := range s.vips() {
		rules = append(rules, fmt.Sprintf("%s saddr %s %s", []string{"ip", "ip6"}[i], vip, then))
	}
	return rules
}
