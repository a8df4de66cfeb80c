package lb

import (
	"net/netip"
	"slices"
	"testing"
)

// TestInside: Inside returns the IPv4 prefixes of all Networks without duplicates.
func TestInside(t *testing.T) {
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, s := range texts {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	all := Networks{
		{Name: "a", VIPs: prefixes("203.0.113.0/25", "2001:db8:f::/64"), Underlay: prefixes("10.0.0.0/9", "2001:db8::/48"), TunnelSources: prefixes("100.64.0.0/16")},
		{Name: "b", VIPs: prefixes("203.0.113.128/25"), TunnelSources: prefixes("100.64.0.0/16", "fd00::/64")},
	}
	want := prefixes("10.0.0.0/9", "100.64.0.0/16", "203.0.113.0/25", "203.0.113.128/25")
	if got := all.Inside(); !slices.Equal(got, want) {
		t.Errorf("inside is %v, want %v", got, want)
	}
	if got := (Networks{}).Inside(); len(got) != 0 {
		t.Errorf("inside of nothing is %v", got)
	}
}
