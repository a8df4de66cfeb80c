package host

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/snat"
)

// holderOf returns a server of a VIP.
func holderOf(vip, dip int) snat.Holder {
	return snat.Holder{
		VIP: snat.VIP{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(vip)})},
		DIP: netip.AddrFrom4([4]byte{10, 20, byte(vip), byte(dip)}),
	}
}

// TestHoldersThatFit checks that a VIP gets another place only if no VIP with fewer places wants
// one, and that servers that have one keep it.
func TestHoldersThatFit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var wanted []snat.Holder
		placed, want := map[snat.Holder]bool{}, map[snat.VIP]int{}
		for vip := range rapid.IntRange(1, 5).Draw(rt, "vips") {
			for dip := range rapid.IntRange(1, 20).Draw(rt, "dips") {
				h := holderOf(vip, dip)
				wanted = append(wanted, h)
				want[h.VIP]++
				placed[h] = rapid.IntRange(0, 9).Draw(rt, "placed") == 0
			}
		}
		most := rapid.IntRange(1, 60).Draw(rt, "most")
		fit, left := fitHolders(wanted, placed, most)
		if len(fit) != min(most, len(wanted)) || len(fit)+len(left) != len(wanted) {
			rt.Fatalf("%d of %d fit and %d are left, with room for %d", len(fit), len(wanted), len(left), most)
		}
		got, fresh := map[snat.VIP]int{}, map[snat.VIP]int{}
		for _, h := range fit {
			got[h.VIP]++
			if !placed[h] {
				fresh[h.VIP]++
			}
		}
		for _, h := range left {
			if placed[h] && len(fresh) > 0 {
				rt.Fatalf("%v lost its place to another", h)
			}
		}
		for a := range fresh {
			for b := range want {
				if got[b] < want[b] && got[a] > got[b]+1 {
					rt.Fatalf("%v got %d places, the last one while %v had %d and wanted %d", a, got[a], b, got[b], want[b])
				}
			}
		}
	})
}

// TestHolderFault checks that the fault names the table and the VIPs.
func TestHolderFault(t *testing.T) {
	if got := holderFault(nil); got != "" {
		t.Errorf("nobody is left: %q", got)
	}
	got := holderFault([]snat.Holder{holderOf(2, 1), holderOf(1, 1), holderOf(1, 2)})
	if want := "table snat_servers is full: 3 servers get no ports of VIPs 203.0.113.1, 203.0.113.2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := holderFault([]snat.Holder{holderOf(1, 1), holderOf(2, 1), holderOf(3, 1), holderOf(4, 1), holderOf(5, 1)}); !strings.HasSuffix(got, "203.0.113.4, 1 more") {
		t.Errorf("five VIPs: %q", got)
	}
}
