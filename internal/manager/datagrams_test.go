package manager

import (
	"slices"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestNarrowTunnelsAreReported checks that a service that takes datagrams over IPv4 through tunnels
// that cannot carry packets of 1,500 bytes is applied with a warning, which gives the required mtu.
func TestNarrowTunnelsAreReported(t *testing.T) {
	const words = "services/s0: endpoints[0]: IPv4 packets of more than "
	for _, c := range []struct {
		name     string
		protocol lb.Protocol
		encap    string
		mtu      uint32
		want     string
	}{
		{"TCP", lb.TCP, "", 1500, ""},
		{"UDP, 1500", lb.UDP, "", 1500, words + "1480 bytes without DF, as fragments of larger datagrams are, do not arrive (too_big): networks/dc mtu is 1500, set it, and the MTU of all links of the underlay, to 1520 or more"},
		{"any", lb.AnyProtocol, "", 1500, words + "1480 bytes"},
		{"UDP, GUE", lb.UDP, lb.EncapGUE, 1520, words + "1476 bytes without DF, as fragments of larger datagrams are, do not arrive (too_big): networks/dc mtu is 1520, set it, and the MTU of all links of the underlay, to 1544 or more"},
		{"UDP, 1520", lb.UDP, "", 1520, ""},
		{"UDP, 9000, GUE", lb.UDP, lb.EncapGUE, 9000, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScribe(t)
			objs := crowd(1, 1, 1)
			for _, o := range objs {
				switch o := o.(type) {
				case *lb.Network:
					o.Name, o.MTU = "dc", c.mtu
				case *lb.Service:
					ep := &o.Endpoints[0]
					ep.Protocol, ep.Encap, ep.RepairWindow = c.protocol, c.encap, nil
					if c.protocol == lb.AnyProtocol {
						ep.Port, ep.Health.Checks = 0, []lb.Check{{Kind: lb.CheckTCP, Port: 80}}
					}
				}
			}
			res, err := s.applied(true, objs...)
			if err != nil {
				t.Fatal(err)
			}
			got := slices.DeleteFunc(slices.Clone(res.GetWarnings()), func(w string) bool { return !strings.HasPrefix(w, words) })
			said := s.m.view.serviceWarnings("s0", nil)
			if !slices.Equal(said, got) {
				t.Errorf("status warns %q, apply %q", said, got)
			}
			if said := s.m.view.serviceWarnings("s0", owned{"other": true}); len(said) > 0 {
				t.Errorf("a tenant is warned of another's service: %q", said)
			}
			if (c.want != "") != (len(got) == 1 && strings.HasPrefix(got[0], c.want)) || c.want == "" && len(got) > 0 {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
