package lab_test

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/netdev"
)

// own adds addresses to a node's loopback for the duration of the test.
func own(t *testing.T, node string, addresses []netip.Addr) {
	t.Helper()
	ns, err := netdev.OpenNamespace(shared.Topology.Name + "-" + node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	for _, a := range addresses {
		prefix := netip.PrefixFrom(a, a.BitLen())
		if err := ns.AddAddress("lo", prefix); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := ns.DeleteAddress("lo", prefix); err != nil {
				t.Error(err)
			}
		})
	}
}
