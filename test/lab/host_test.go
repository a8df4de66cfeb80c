package lab_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
)

// without writes a backend of each family without a port, so that packets keep theirs.
func (s service) without(vm lab.Node) string {
	text := s.perFamily(vm)
	return strings.ReplaceAll(text, fmt.Sprintf("port: %d, ", s.dipPort), "")
}

// A range of ports goes to the same ports of the servers. A separate port inside it goes to its own
// target.
func TestPortRange(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "range", number: 70, protocol: "tcp", port: 8000, ports: "8000-8100", backends: []string{"host1-vm1", "host2-vm1"}}
	web.entry = web.without
	web.up(t)
	for _, vip := range web.vips() {
		target := netip.AddrPortFrom(vip, 8080).String()
		if counts := servers(t, target, 40); len(counts) != 2 {
			t.Errorf("%s: answers came from %v", target, counts)
		}
		transfer(t, target)
	}
}

// An endpoint for all protocols, whose VIP the servers own: TCP and UDP of all ports arrive
// unchanged.
func TestEveryProtocol(t *testing.T) {
	logsOnFailure(t, shared)
	all := service{name: "every", number: 71, protocol: "any", ports: `"*"`, rewrite: "none", backends: []string{"host1-vm1", "host3-vm2"}}
	all.entry = all.without
	for _, vm := range all.backends {
		own(t, vm, all.vips())
	}
	all.up(t)
	for _, vip := range all.vips() {
		if counts := servers(t, netip.AddrPortFrom(vip, 8080).String(), 40); len(counts) != 2 {
			t.Errorf("%s: answers came from %v", vip, counts)
		}
		for i := range 10 {
			echoOnce(t, "tcp", netip.AddrPortFrom(vip, 7).String(), fmt.Sprintf("line %d\n", i))
			echoOnce(t, "udp", netip.AddrPortFrom(vip, 7).String(), fmt.Sprintf("datagram %d", i))
		}
	}
}
