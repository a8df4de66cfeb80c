package doctor

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// firewalld is a short form of firewalld's rules for forwarded packets.
const firewalld = `table inet firewalld {
	chain filter_PREROUTING {
		type filter hook prerouting priority filter + 10; policy accept;
	}

	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_FORWARD_ZONES
		reject with icmpx admin-prohibited
	}

	chain filter_FORWARD_ZONES {
		iifname "eth0" goto filter_FWD_public
	}

	chain filter_FWD_public {
		counter packets 3 bytes 180 drop comment "of this zone"
	}

	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state invalid drop
	}
}
`

const (
	kubeForward = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n-A INPUT -m conntrack --ctstate INVALID -j DROP\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n"
	policyDrop  = "table ip f {\n\tchain forward {\n\t\ttype filter hook forward priority filter; policy drop;\n\t\tct state established,related accept\n\t}\n}\n"
	notracked   = "table inet shunt {\n\tchain answers {\n\t\ttype filter hook prerouting priority raw; policy accept;\n\t\tip saddr 10.20.1.11 tcp sport 8080 notrack\n\t}\n}\n"
	natOnly     = "table ip nat {\n\tchain post {\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n\t\tmasquerade\n\t}\n}\n"
)

// TestForwardDrops: rules that drop replies are found in the chains of the forward hook, except
// those that replies of servers are exempt from.
func TestForwardDrops(t *testing.T) {
	for _, c := range []struct {
		name, rules string
		want        []drop
	}{
		{"none", "", nil},
		{"NAT of servers", natOnly, nil},
		{"firewalld", firewalld, []drop{
			{"inet firewalld", "filter_FORWARD", "ct state invalid drop", true},
			{"inet firewalld", "filter_FORWARD", "reject with icmpx admin-prohibited", false},
			{"inet firewalld", "filter_FWD_public", "drop", false},
		}},
		{"kube-proxy", kubeForward, []drop{{"ip filter", "KUBE-FORWARD", "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP", true}}},
		{"iptables, policy", strings.Replace(kubeForward, ":FORWARD ACCEPT", ":FORWARD DROP", 1), []drop{
			{"ip filter", "FORWARD", "policy DROP", false}, {"ip filter", "KUBE-FORWARD", "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP", true},
		}},
		{"policy", policyDrop, []drop{{"ip f", "forward", "policy drop", false}}},
		{"policy, not tracked", policyDrop + notracked, []drop{{"ip f", "forward", "policy drop", false}}},
		{"policy, not tracked and accepted", strings.Replace(policyDrop, "ct state established", "ct state untracked accept\n\t\tct state established", 1) + notracked, nil},
		{"invalid, not tracked", strings.Replace(policyDrop, "policy drop;\n\t\tct state established,related accept", "policy accept;\n\t\tct state invalid drop", 1) + notracked, nil},
	} {
		if got := forwardDrops(c.rules); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestAnswersLeave: second uplinks and firewalls are found, separately for each family.
func TestAnswersLeave(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*Fake)
		want  Status
		words string
	}{
		{"usual", func(*Fake) {}, OK, "the IPv4 default route leaves by eth0"},
		{"no default route", func(f *Fake) { f.Routes = nil }, OK, "no default route: clients have routes of their own"},
		{"ECMP 4", func(f *Fake) { f.Routes[false] = []string{"eth0", "eth1"} }, Fail, "the IPv4 default route leaves by eth1 as well as by eth0"},
		{"ECMP 6", func(f *Fake) { f.Routes = map[bool][]string{true: {"eth1", "eth0"}} }, Fail, "the IPv6 default route leaves by eth1 as well as by eth0"},
		{"management", func(f *Fake) { f.Routes[false] = []string{"mgmt0"} }, Warn, "the IPv4 default route leaves by mgmt0, not by eth0"},
		{"firewall", func(f *Fake) { f.Rules = []string{natOnly, kubeForward} }, Warn, "ip filter KUBE-FORWARD:"},
		{"refused", func(f *Fake) { f.NoRules = errors.New("operation not permitted") }, Warn, "cannot be listed: operation not permitted"},
	} {
		f := NewFake()
		c.spoil(f)
		found := slices.ContainsFunc(Run(f, options(Host)), func(r Result) bool {
			return (r.Check == "answers" || r.Check == "firewall") && r.Status == c.want && strings.HasPrefix(r.Found, c.words) && (r.Cure != "") == (c.want != OK)
		})
		if !found {
			t.Errorf("%s: %+v", c.name, Run(f, options(Host)))
		}
		if slices.ContainsFunc(Run(f, options(Mux)), func(r Result) bool { return r.Check == "answers" || r.Check == "firewall" }) {
			t.Errorf("%s: a mux has no answers that leave", c.name)
		}
	}
}
