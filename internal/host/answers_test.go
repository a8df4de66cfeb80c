package host

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestAnswersJudged checks that servers are listed after two periods with answers to less than half
// of the SYNs, until answers leave again or no SYN arrives for long.
func TestAnswersJudged(t *testing.T) {
	b := binding("203.0.113.10", "10.20.1.11")
	const name = "203.0.113.10 TCP port 80 at 10.20.1.11"
	udp := b
	udp.Key.Protocol = lb.UDP
	type period struct {
		asked, accepted, refused uint64
		dead                     bool
		want                     bool
	}
	quiet := slices.Repeat([]period{{want: true}}, answersQuiet-1)
	for _, c := range []struct {
		name    string
		periods []period
		udp     bool
		never   bool // it answered none before
	}{
		{"UDP, some answered", []period{{asked: 100, accepted: 100}, {asked: 100, accepted: 1}, {asked: 100, accepted: 1}}, true, false},
		{"UDP, lost", []period{{asked: 8}, {asked: 8, want: true}, {asked: 8, want: true}, {asked: 8, accepted: 1}}, true, false},
		{"UDP, never answered", []period{{asked: 100}, {asked: 100}, {asked: 100}}, true, true},
		{"UDP, dead by checks", []period{{asked: 100, dead: true}, {asked: 100, dead: true}}, true, false},
		{"answered", []period{{asked: 100, accepted: 100}, {asked: 100, accepted: 60, refused: 30}, {asked: 100, accepted: 50}}, false, false},
		{"refused", []period{{asked: 100, refused: 100}, {asked: 100, refused: 100}}, false, false},
		{"a server that dies", []period{{asked: 100}, {}, {asked: 100}, {asked: 100, accepted: 100}}, false, false},
		{"dead by checks", []period{{asked: 100, dead: true}, {asked: 100, dead: true}, {asked: 100, dead: true}}, false, false},
		{"few", []period{{asked: 7}, {asked: 7}, {asked: 7}}, false, false},
		{"lost", []period{{asked: 8}, {asked: 8, want: true}, {asked: 8, want: true}, {want: true}, {asked: 1, accepted: 1}}, false, false},
		{"half is lost", []period{{asked: 97, accepted: 21}, {asked: 97, accepted: 21, want: true}}, false, false},
		{"nothing asks any more", append([]period{{asked: 8}, {asked: 8, want: true}}, append(quiet, period{})...), false, false},
	} {
		x := &answers{log: slog.New(slog.DiscardHandler)}
		total, name := dataplane.BindingHandshakes{Binding: b, Asked: 1000, Accepted: 3}, name
		if c.udp {
			total.Binding, name = udp, strings.Replace(name, "TCP", "UDP", 1)
		}
		if c.never {
			total.Accepted = 0
		}
		x.look([]dataplane.BindingHandshakes{total}, func(memberRef) bool { return false })
		for i, p := range c.periods {
			total.Asked, total.Accepted, total.Refused = total.Asked+p.asked, total.Accepted+p.accepted, total.Refused+p.refused
			x.look([]dataplane.BindingHandshakes{total}, func(memberRef) bool { return p.dead })
			var want []string
			if p.want {
				want = []string{name}
			}
			if got := x.lost(); !slices.Equal(got, want) {
				t.Errorf("%s: period %d: %q, want %q", c.name, i, got, want)
			}
		}
		x.look(nil, func(memberRef) bool { return false })
		if got := x.lost(); len(got) != 0 {
			t.Errorf("%s: a binding that left is named: %q", c.name, got)
		}
	}
}

// TestOtherWays checks that other devices of the default route are a fault, but not the management
// network's.
func TestOtherWays(t *testing.T) {
	for _, c := range []struct {
		devices []string
		want    string
	}{
		{[]string{"eth0"}, ""},
		{[]string{"mgmt0"}, ""},
		{[]string{"eth1", "eth0"}, "the IPv4 default route leaves by eth1 as well as by the uplink eth0: answers that leave by eth1 keep the server's address, and clients drop them"},
	} {
		m := settings(forwarding)
		m.Devices = func(to netip.Addr) ([]string, error) {
			if to.Is6() {
				return nil, errors.New("network is unreachable")
			}
			return c.devices, nil
		}
		found := m.Problems([]plan.Binding{binding("203.0.113.10", "10.20.1.11")})
		got := ""
		for _, p := range found {
			if strings.Contains(p.Text, "default route") && got == "" {
				got = p.Text
				if !p.Fatal || p.Cure == "" {
					t.Errorf("%+v", p)
				}
			}
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.devices, got, c.want)
		}
	}
}

// Clients' addresses, and the networks of the host's second uplink.
const (
	manyNet4, manyNet6 = "192.0.2.", "2001:db8::"
	second4, second6   = "198.51.101.", "2001:db8:101::"
)

// syns sends SYNs to a VIP from `many` addresses of the client, each from a socket that does not
// wait for an answer.
func (n *testNet) syns(vip, from string, many int) {
	n.t.Helper()
	check(n.t, netdev.In(n.client, func() error {
		for i := range many {
			local, remote := netip.MustParseAddr(from+fmt.Sprint(1+i)), netip.AddrPortFrom(netip.MustParseAddr(vip), vipPort)
			family, source, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: as4(local)}), unix.Sockaddr(&unix.SockaddrInet4{Addr: as4(remote.Addr()), Port: vipPort})
			if local.Is6() {
				family, source, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: local.As16()}, &unix.SockaddrInet6{Addr: remote.Addr().As16(), Port: vipPort}
			}
			s, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			n.t.Cleanup(func() { unix.Close(s) })
			if err := unix.Bind(s, source); err != nil {
				return err
			}
			if err := unix.Connect(s, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
				return err
			}
		}
		return nil
	}))
}

func as4(a netip.Addr) (out [4]byte) {
	if a.Is4() {
		out = a.As4()
	}
	return out
}

// TestAnswersVanish checks that answers that a firewall with connection tracking drops, and answers
// that leave by a second uplink, are detected while the fault lasts, over IPv4 and IPv6, and not
// after their cures.
func TestAnswersVanish(t *testing.T) {
	const many = 40
	for _, f := range []struct {
		name, vip, dip, from, family string
	}{
		{"IPv4", "203.0.113.10", dip4, manyNet4, "ip"}, {"IPv6", "2001:db8:f::10", dip6, manyNet6, "ip6"},
	} {
		ip, client, second, router := "-4", client4, second4, second4+"1/24"
		if f.name == "IPv6" {
			ip, client, second, router = "-6", client6, second6, second6+"1/64"
		}
		invalid := "table inet f { chain forward { type filter hook forward priority filter; policy accept; ct state invalid counter drop; }; }"
		policy := "table inet f { chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; meta l4proto ipv6-icmp accept; counter; }; }"
		cure := fmt.Sprintf("table inet shunt { chain answers { type filter hook prerouting priority raw; %s saddr %s tcp sport %d notrack; }; }", f.family, f.dip, serverPort)
		for _, c := range []struct {
			name          string
			breaks, cures [][]string
			problem       bool
		}{
			{"invalid", [][]string{{"nft", invalid}}, [][]string{{"nft", cure}}, false},
			{"policy", [][]string{{"nft", policy}}, [][]string{{"nft", cure}, {"nft", "insert", "rule", "inet", "f", "forward", "ct", "state", "untracked", "accept"}}, false},
			{
				"second uplink",
				// Fix the VIP's own way, because hosts treat a sender that is not behind the uplink
				// as a client on this machine if the VIP is behind the uplink, and the kernel's
				// hash, whose seed changes with each boot, would decide.
				[][]string{
					{"ip", ip, "route", "replace", "default", "nexthop", "via", client, "dev", "up0", "weight", "1", "nexthop", "via", second + "2", "dev", "up1", "weight", "9"},
					{"ip", ip, "route", "add", f.vip, "via", second + "2", "dev", "up1"},
				},
				[][]string{{"ip", ip, "route", "del", f.vip}, {"ip", ip, "route", "replace", "default", "via", client, "dev", "up0"}}, true,
			},
		} {
			t.Run(f.name+" "+c.name, func(t *testing.T) {
				n := newTestNet(t, 1500)
				clientNS, hostNS := n.reopen(n.client), n.reopen(n.host)
				check(t, netdev.AddVeth(netdev.VethEnd{Namespace: clientNS, Name: "c1"}, netdev.VethEnd{Namespace: hostNS, Name: "up1"}, 1500))
				for i := range many {
					a := netip.MustParseAddr(f.from + fmt.Sprint(1+i))
					check(t, clientNS.AddAddress("lo", netip.PrefixFrom(a, a.BitLen())))
				}
				n.command(n.client, "ip", ip, "address", "add", strings.Replace(router, "1/", "2/", 1), "dev", "c1")
				n.command(n.host, "ip", ip, "address", "add", router, "dev", "up1")
				n.command(n.host, "ip", ip, "route", "add", "default", "via", client, "dev", "up0")
				n.startServers()
				h := n.attach()
				a := New(h, thisMachine("up0"), &prober{}, clock.System{}, nil)
				name := fmt.Sprintf("%s TCP port 80 at %s", f.vip, f.dip)
				counts := func() (out dataplane.BindingHandshakes) {
					all, err := h.Handshakes(func(b *plan.Binding) bool { return b.Key.Protocol == lb.TCP && b.Key.VIP.String() == f.vip })
					check(t, err)
					return all[0]
				}
				// period sends SYNs of all addresses and waits until they are delivered and
				// `answered` of them answered.
				period := func(answered int) (lost []string) {
					before := counts()
					n.syns(f.vip, f.from, many)
					n.eventually(fmt.Sprintf("%d of %d SYNs answered", answered, many), func() bool {
						now := counts()
						return now.Asked-before.Asked >= many && now.Accepted-before.Accepted >= uint64(answered)
					})
					check(t, a.lookAtAnswers())
					return a.answers.lost()
				}
				problem := func() (found bool) {
					check(t, netdev.In(n.host, func() error {
						for _, p := range thisMachine("up0").Problems(testPlan(1500).Bindings) {
							found = found || strings.Contains(p.Text, "default route leaves by up1 as well as by the uplink up0")
						}
						return nil
					}))
					return found
				}
				check(t, a.lookAtAnswers())
				if lost := period(many); len(lost) != 0 || problem() {
					t.Fatalf("at first: %q", lost)
				}
				for _, command := range c.breaks {
					n.command(n.host, command...)
				}
				period(0)
				if lost := period(0); !slices.Equal(lost, []string{name}) || a.Status().GetUnansweredServers()[0] != name {
					t.Errorf("servers named %q, want %q", lost, name)
				}
				if problem() != c.problem {
					t.Errorf("problem of the machine found: %v", !c.problem)
				}
				for _, command := range c.cures {
					n.command(n.host, command...)
				}
				if lost := period(many); len(lost) != 0 || problem() {
					t.Errorf("after the cure: %q", lost)
				}
			})
		}
	}
}
