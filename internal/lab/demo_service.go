package lab

import (
	"fmt"
	"net/netip"
	"strings"
)

// webService is a service on port 80 over both families.
type webService struct {
	// VMs are the backends by name, in order.
	VMs      []string
	Draining map[string]bool
}

// Health checks of the demo's service: a stopped server is marked down after two checks.
const webHealth = `  health: {http: {path: /healthz}, interval: 100ms, timeout: 100ms, rise: 2, fall: 2}
`

// webVIP is the number of the demo's VIPs.
const webVIP = 10

// yaml writes the service as a user would.
func (w webService) yaml(t Topology) (string, error) {
	v4, v6 := VIPAddresses(webVIP)
	var b strings.Builder
	fmt.Fprintf(&b, "kind: Service\nname: web\nvip: [%s, %q]\nendpoints:\n- protocol: tcp\n  port: 80\n  backends:\n", v4, v6)
	for _, vm := range w.VMs {
		n, err := t.Find(vm)
		if err != nil {
			return "", err
		}
		drain := ""
		if w.Draining[vm] {
			drain = ", drain: true"
		}
		dips, host := n.Addresses(), HostAddresses(n.Index)
		fmt.Fprintf(&b, "  - {dip: [%s, %q], port: %d, host: %s%s}\n", dips.V4.Addr(), dips.V6.Addr(), ServerPort, host.V4.Addr(), drain)
	}
	b.WriteString(webHealth)
	return b.String(), nil
}

// webTargets returns the addresses that clients request.
func webTargets() []string {
	v4, v6 := VIPAddresses(webVIP)
	return []string{netip.AddrPortFrom(v4, 80).String(), netip.AddrPortFrom(v6, 80).String()}
}
