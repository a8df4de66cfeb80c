package lb_test

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// ownedService returns a service whose servers own the VIPs, each with its DIPs, at these hosts.
func ownedService(at ...[]string) *lb.Service {
	s := validService()
	s.Endpoints = s.Endpoints[:1]
	e := &s.Endpoints[0]
	e.Affinity, e.Cookie, e.Rewrite, e.Backends = lb.AffinityCookie, lb.Cookie{Form: lb.CookieCO}, lb.RewriteNone, nil
	for _, addrs := range at {
		b := lb.Backend{Port: 80, Host: addr(addrs[0]), Weight: 1}
		for _, dip := range addrs[1:] {
			b.DIPs = append(b.DIPs, addr(dip))
		}
		e.Backends = append(e.Backends, b)
	}
	return s
}

// TestOneOwnerOnAMachine: a node with two addresses has at most one server of an endpoint for the
// VIPs of a family.
func TestOneOwnerOnAMachine(t *testing.T) {
	node := &lb.Node{Name: "host1", Role: lb.RoleHost, Addresses: []netip.Addr{addr("10.20.1.1"), addr("2001:db8:20:1::1")}}
	const refused = "services/web: endpoints[0].backends[1].host: 2001:db8:20:1::1: must be of another node than that of backends[0] with cookie.form co: " +
		"nodes/host1 has both addresses, and a machine answers for one server of an endpoint"
	four, six := []string{"10.20.1.1", "10.20.1.1"}, []string{"2001:db8:20:1::1", "2001:db8:20:1::1"}
	for name, c := range map[string]struct {
		service *lb.Service
		want    string
	}{
		"one for each family":          {ownedService(four, six), ""},
		"both for VIPs of IPv6":        {ownedService([]string{"10.20.1.1", "10.20.1.1", "2001:db8:20:1::2"}, six), refused},
		"at a machine that is no node": {ownedService([]string{"10.20.2.1", "10.20.2.1", "2001:db8:20:2::2"}, []string{"2001:db8:20:2::1", "2001:db8:20:2::1"}), ""},
	} {
		state := lb.NewState()
		state.Apply(lb.PutEdit(validNetwork()), lb.PutEdit(c.service))
		if got := texts(state.Check(lb.PutEdit(node))); got != c.want {
			t.Errorf("%s, and then the node:\n got %q\nwant %q", name, got, c.want)
		}
		state = lb.NewState()
		state.Apply(lb.PutEdit(validNetwork()), lb.PutEdit(node))
		if got := texts(state.Check(lb.PutEdit(c.service))); got != c.want {
			t.Errorf("%s, the node first:\n got %q\nwant %q", name, got, c.want)
		}
	}
}
