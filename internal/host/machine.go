package host

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/plan"
)

// Problem is a setting of the machine that keeps packets from servers, or may do so.
type Problem struct {
	Text  string
	Cure  string // the command that fixes it
	Fatal bool   // packets are certainly lost
}

// Machine gives the agent read access to the settings of its machine. The agent changes none of
// them.
type Machine struct {
	// Interface is the uplink's name.
	Interface string
	// Sysctl reads a kernel setting, its key with slashes: "net/ipv4/ip_forward".
	Sysctl func(key string) (string, error)
	// Addresses returns the addresses of the machine itself.
	Addresses func() ([]netip.Addr, error)
	// Devices returns the names of the devices of all next hops of the route to an address; nil:
	// routes are not checked.
	Devices func(to netip.Addr) ([]string, error)
	// Links returns the uplink; nil: unknown.
	Links func() []agent.Link
}

// Problems returns the settings that do not suit the bindings.
func (m Machine) Problems(bindings []plan.Binding) []Problem {
	addrs, err := m.Addresses()
	if err != nil {
		return []Problem{{Text: err.Error(), Cure: "look at `ip address`"}}
	}
	var behind, local struct{ four, six bool }
	for _, b := range bindings {
		where := &behind
		if slices.Contains(addrs, b.DIP) {
			where = &local
		}
		where.four = where.four || b.DIP.Is4()
		where.six = where.six || b.DIP.Is6()
	}
	var found []Problem
	if behind.four && !m.forwards("ipv4") {
		found = append(found, m.noForwarding("IPv4", "net.ipv4.ip_forward"))
	}
	if behind.six && !m.forwards("ipv6") {
		found = append(found, m.noForwarding("IPv6", "net.ipv6.conf.all.forwarding"))
	}
	if local.four && m.strict() {
		found = append(found, Problem{
			Text: fmt.Sprintf("rp_filter of %s is strict: packets of clients are dropped unless the route back to them leaves by %s", m.Interface, m.Interface),
			Cure: fmt.Sprintf("sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.%s.rp_filter=2", m.Interface),
		})
	}
	if len(bindings) > 0 {
		found = append(found, m.otherWays()...)
	}
	return found
}

// forwards reports whether packets that arrive by the uplink are forwarded. A setting that cannot
// be read counts as on.
func (m Machine) forwards(family string) bool {
	v, err := m.Sysctl("net/" + family + "/conf/" + m.Interface + "/forwarding")
	return err != nil || v != "0"
}

func (m Machine) noForwarding(family, sysctl string) Problem {
	return Problem{
		Text:  fmt.Sprintf("%s forwarding is off on %s: servers behind this machine get no packets", family, m.Interface),
		Cure:  "sysctl -w " + sysctl + "=1",
		Fatal: true,
	}
}

// strict reports whether reverse path filtering is strict on the uplink: the larger of two settings
// counts (1 strict, 2 loose).
func (m Machine) strict() bool {
	largest := "0"
	for _, dev := range []string{"all", m.Interface} {
		if v, err := m.Sysctl("net/ipv4/conf/" + dev + "/rp_filter"); err == nil {
			largest = max(largest, v)
		}
	}
	return largest == "1"
}
