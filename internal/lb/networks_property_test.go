package lb_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// block returns an address of 10.0.0.0/24, the address space of the oracle, by its last byte.
func block(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }

// set returns the addresses of prefixes inside the block.
func set(list []netip.Prefix) map[int]bool {
	out := map[int]bool{}
	for i := range 256 {
		for _, p := range list {
			if p.Contains(block(i)) {
				out[i] = true
			}
		}
	}
	return out
}

func meet(a, b map[int]bool) bool {
	for i := range a {
		if b[i] {
			return true
		}
	}
	return false
}

// TestNetworks compares functions of Networks with sets of addresses: which Networks exclude each
// other, the Network of a VIP, the Network of a node, the sources that hosts accept.
func TestNetworks(t *testing.T) {
	prefixes := rapid.Custom(func(t *rapid.T) []netip.Prefix {
		var out []netip.Prefix
		for range rapid.IntRange(0, 2).Draw(t, "prefixes") {
			p := netip.PrefixFrom(block(rapid.IntRange(0, 255).Draw(t, "at")), rapid.IntRange(26, 32).Draw(t, "bits")).Masked()
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
		return out
	})
	rapid.Check(t, func(t *rapid.T) {
		var objects []lb.Object
		var all []*lb.Network
		for i := range rapid.IntRange(1, 4).Draw(t, "networks") {
			n := &lb.Network{
				Name: string(rune('a' + i)), VIPs: prefixes.Draw(t, "vips"), Underlay: prefixes.Draw(t, "underlay"), TunnelSources: prefixes.Draw(t, "sources"),
				Encap: rapid.SampledFrom([]string{lb.EncapIPIP, lb.EncapGUE}).Draw(t, "encap"),
			}
			all, objects = append(all, n), append(objects, n)
		}
		wrong := map[string]bool{}
		for i, n := range all {
			for _, o := range all[:i] {
				taken := set(slices.Concat(n.VIPs, n.Underlay))
				theirs := set(slices.Concat(o.VIPs, o.Underlay))
				if meet(taken, theirs) || meet(set(n.TunnelSources), theirs) || meet(taken, set(o.TunnelSources)) {
					wrong[n.Name] = true
				}
			}
		}
		shuffled := rapid.Permutation(objects).Draw(t, "shuffled")
		named := map[string]bool{}
		for _, v := range lb.ValidateState(shuffled) {
			named[v.Field[len("networks/"):len("networks/")+1]] = true
		}
		if fmt.Sprint(named) != fmt.Sprint(wrong) {
			t.Fatalf("at fault are %v, want %v", named, wrong)
		}
		if len(wrong) > 0 {
			return
		}
		networks := lb.SortNetworks(rapid.Permutation(all).Draw(t, "order"))
		var open []string
		for _, n := range all {
			if len(n.Underlay) == 0 {
				open = append(open, n.Name)
			}
		}
		for i := range 256 {
			vip, home, encap := "", "", lb.EncapIPIP
			for _, n := range all {
				if set(n.VIPs)[i] {
					vip, encap = n.Name, n.Encap
				}
				if set(n.Underlay)[i] {
					home = n.Name
				}
			}
			if home == "" {
				home = append(open, "a")[0]
			}
			got := networks.OfVIP(block(i))
			if name(got) != vip || networks.Encap(block(i)) != encap {
				t.Fatalf("VIP %s is of %q with %s, want %q with %s", block(i), name(got), networks.Encap(block(i)), vip, encap)
			}
			if got := networks.Home([]netip.Addr{block(i)}); name(got) != home {
				t.Fatalf("node %s stands in %q, want %q", block(i), name(got), home)
			}
		}
		for _, c := range []struct {
			name string
			got  []netip.Prefix
			of   func(*lb.Network) []netip.Prefix
		}{
			{"vips", networks.VIPs(), func(n *lb.Network) []netip.Prefix { return n.VIPs }},
			{"underlay", networks.Underlay(), func(n *lb.Network) []netip.Prefix { return n.Underlay }},
		} {
			want := map[netip.Prefix]bool{}
			for _, n := range all {
				for _, p := range c.of(n) {
					want[p] = true
				}
			}
			for i, p := range c.got {
				if !want[p] || slices.Contains(c.got[:i], p) {
					t.Fatalf("%s: %s is there twice, or nobody's", c.name, p)
				}
			}
			if len(c.got) != len(want) {
				t.Fatalf("%s are %v, want all of %v", c.name, c.got, want)
			}
		}
		first := rapid.SampledFrom(all).Draw(t, "first")
		sources := networks.TunnelSources(first)
		if !slices.Equal(sources[:len(first.TunnelSources)], first.TunnelSources) {
			t.Fatalf("sources %v do not begin with those of %s", sources, first.Name)
		}
		want := map[netip.Prefix]bool{}
		for _, n := range all {
			for _, p := range n.TunnelSources {
				want[p] = true
			}
		}
		for _, p := range sources {
			if !want[p] {
				t.Fatalf("source %s is there twice, or nobody's", p)
			}
			delete(want, p)
		}
		if len(want) > 0 {
			t.Fatalf("sources %v are missing", want)
		}
	})
}

func name(n *lb.Network) string {
	if n == nil {
		return ""
	}
	return n.Name
}
