package lb_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestRoutingOfState: sessions that cannot come up are refused with their field, also when the
// Network or the other mux is added later.
func TestRoutingOfState(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(mux1, mux2 *lb.Node)
		want  []string
	}{
		{"valid", func(_, _ *lb.Node) {}, nil},
		{"a VIP as router", func(mux1, _ *lb.Node) { mux1.BGP.Peers[0].Address = addr("203.0.113.77") }, []string{
			"nodes/mux1: bgp.peers[0].address: 203.0.113.77: must not be inside vips[0] of networks/dc, 203.0.113.0/24: no router has a VIP",
		}},
		{"of IPv6", func(_, mux2 *lb.Node) {
			mux2.BGP.Peers = append(mux2.BGP.Peers, lb.BGPPeer{Address: addr("2001:db8:f::1"), ASN: 65000})
		}, []string{"nodes/mux2: bgp.peers[1].address: 2001:db8:f::1: must not be inside vips[1] of networks/dc, 2001:db8:f::/64: no router has a VIP"}},
		{"one identifier", func(mux1, mux2 *lb.Node) { mux1.BGP.RouterID, mux2.BGP.RouterID = addr("192.0.2.1"), addr("192.0.2.1") }, []string{
			"nodes/mux2: bgp.routerId: 192.0.2.1: must differ from that of nodes/mux1, which is in AS 65010 too",
		}},
		{"the address of another", func(_, mux2 *lb.Node) { mux2.BGP.RouterID = addr("10.10.0.11") }, []string{
			"nodes/mux2: bgp.routerId: 10.10.0.11: must differ from that of nodes/mux1, which is in AS 65010 too",
		}},
		{"another AS", func(mux1, mux2 *lb.Node) {
			mux1.BGP.RouterID, mux2.BGP.RouterID, mux2.BGP.ASN = addr("192.0.2.1"), addr("192.0.2.1"), 65011
		}, nil},
	} {
		mux1, mux2 := validNode(), validNode()
		mux2.Name, mux2.Addresses = "mux2", []netip.Addr{addr("10.10.0.12")}
		c.spoil(mux1, mux2)
		all := []lb.Object{mux1, mux2, validNetwork()}
		for _, o := range all {
			if wrong := lb.Validate(o); len(wrong) > 0 {
				t.Errorf("%s: %v", c.name, texts(wrong))
			}
		}
		want := strings.Join(c.want, "\n      ")
		if got := texts(lb.ValidateState(all)); got != want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, want)
		}
		state := lb.NewState()
		for i, o := range all {
			found := state.Check(lb.PutEdit(o))
			if i == len(all)-1 && texts(found) != want {
				t.Errorf("%s: one after the other:\n got %q\nwant %q", c.name, texts(found), want)
			}
			state.Apply(lb.PutEdit(o))
		}
		// A fixed object has no fault any more.
		if found := state.Check(lb.PutEdit(validNode()), lb.Edit{Kind: lb.KindNode, Name: "mux2"}); len(found) > 0 {
			t.Errorf("%s: mended: %q", c.name, texts(found))
		}
	}
}
