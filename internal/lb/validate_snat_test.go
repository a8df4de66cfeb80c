package lb_test

import (
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestSNATQuotas: limits are whole ranges, and one server's no more than a VIP has.
func TestSNATQuotas(t *testing.T) {
	for _, c := range []struct {
		quotas lb.Quotas
		want   string
	}{
		{lb.Quotas{}, ""},
		{lb.Quotas{SNATPorts: 8, SNATPortsPerDIP: 64512}, ""},
		{lb.Quotas{SNATPorts: 1 << 31}, ""},
		{lb.Quotas{SNATPorts: 12}, "tenants/shop: quotas.snatPorts: 12: must be a multiple of 8, the ports of a range, or 0 for no limit"},
		{lb.Quotas{SNATPortsPerDIP: 1}, "tenants/shop: quotas.snatPortsPerDip: 1: must be a multiple of 8, the ports of a range, or 0 for 1024"},
		{lb.Quotas{SNATPortsPerDIP: 64520}, "tenants/shop: quotas.snatPortsPerDip: 64520: must be at most 64512: a VIP has no more ports to lease"},
	} {
		got := ""
		for _, v := range lb.Validate(&lb.Tenant{Name: "shop", Weight: 1, Quotas: c.quotas}) {
			got += v.String()
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.quotas, got, c.want)
		}
	}
}
