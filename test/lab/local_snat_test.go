package lab_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
)

// A server whose outbound connections use its VIP reaches VIPs with its own address: another
// service's, of which it is a server itself in addition to one on its host and one elsewhere, and
// that of its own service.
func TestServerWithSNATAsClient(t *testing.T) {
	logsOnFailure(t, shared)
	const client = "host1-vm1"
	o := newOutside(t)
	own := service{name: "local-snat", number: 131, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{client}}
	own.rest = fmt.Sprintf("snat: [%q]\n", lab.VMAddresses(1, 1).V4.Addr())
	web, echo, datagrams := trio("local-other", 132, client, "host1-vm2", "host2-vm1")
	for _, s := range []service{own, web, echo, datagrams} {
		s.up(t)
	}
	speaks := func() {
		t.Helper()
		o.dialOut(t, []string{client}, 3)
		o.askByUDP(t, client)
	}
	speaks()
	for i := range web.vips() {
		serversFrom(t, client, own.targets()[i], 5, client)
		serversFrom(t, client, web.targets()[i], 20, web.backends...)
		datagramsFrom(t, client, datagrams.targets()[i], 20)
		bulkFrom(t, client, web.targets()[i], echo.targets()[i], 2_000_000)
	}
	speaks()
	for _, protocol := range []string{"tcp", "udp"} {
		for _, from := range o.from(protocol) {
			if from.Addr() != own.vips()[0] {
				t.Errorf("the outside heard %s of %s, want %s", protocol, from, netip.AddrPortFrom(own.vips()[0], 0))
			}
		}
	}
}
