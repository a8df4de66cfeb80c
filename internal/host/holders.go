package host

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/snat"
)

// fitHolders selects the servers that get ports if the table has room for only `most`. Servers that
// have a place keep it. The others get one in turns, a server of the VIP with the fewest first.
func fitHolders(wanted []snat.Holder, placed map[snat.Holder]bool, most int) (fit, left []snat.Holder) {
	if len(wanted) <= most {
		return wanted, nil
	}
	count, waiting := map[snat.VIP]int{}, map[snat.VIP][]snat.Holder{}
	for _, h := range wanted {
		if placed[h] && len(fit) < most {
			fit = append(fit, h)
			count[h.VIP]++
			continue
		}
		waiting[h.VIP] = append(waiting[h.VIP], h)
	}
	for _, of := range waiting {
		slices.SortFunc(of, func(a, b snat.Holder) int { return a.DIP.Compare(b.DIP) })
	}
	for len(waiting) > 0 && len(fit) < most {
		vip := slices.MinFunc(slices.Collect(maps.Keys(waiting)), func(a, b snat.VIP) int {
			return cmp.Or(cmp.Compare(count[a], count[b]), a.Compare(b))
		})
		fit = append(fit, waiting[vip][0])
		count[vip]++
		if waiting[vip] = waiting[vip][1:]; len(waiting[vip]) == 0 {
			delete(waiting, vip)
		}
	}
	for _, of := range waiting {
		left = append(left, of...)
	}
	return fit, left
}

// holderFault returns the fault for servers that got no place; empty: all have one.
func holderFault(left []snat.Holder) string {
	if len(left) == 0 {
		return ""
	}
	var vips []netip.Addr
	for _, h := range left {
		if !slices.Contains(vips, h.VIP.Addr) {
			vips = append(vips, h.VIP.Addr)
		}
	}
	slices.SortFunc(vips, netip.Addr.Compare)
	var named []string
	for _, a := range vips[:min(len(vips), 4)] {
		named = append(named, a.String())
	}
	if n := len(vips) - len(named); n > 0 {
		named = append(named, fmt.Sprintf("%d more", n))
	}
	return fmt.Sprintf("table %s is full: %d servers get no ports of VIPs %s", dataplane.TableSNATServers, len(left), strings.Join(named, ", "))
}
