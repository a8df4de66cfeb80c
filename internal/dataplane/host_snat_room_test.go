package dataplane

import (
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/snat"
)

// TestHostSNATRangesHaveRoomForOthers: servers that use whole VIPs fill three quarters of the table at most. They go on with part of their ranges, and
// others get all of theirs.
func TestHostSNATRangesHaveRoomForOthers(t *testing.T) {
	e := newHostEnv(t).quiet()
	server := func(i int) snat.Holder {
		return snat.Holder{VIP: snat.VIP{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}, DIP: netip.AddrFrom4([4]byte{10, 20, 7, byte(i)})}
	}
	var holders []snat.Holder
	for i := range 32 {
		holders = append(holders, server(i))
	}
	must(t, e.host.SetHolders(holders))
	all := make([]snat.Range, snat.Ranges)
	for i := range all {
		all[i] = snat.Range(i)
	}
	for _, h := range holders[:31] {
		must(t, e.host.SetRanges(h, all, nil))
	}
	few := all[200:700]
	must(t, e.host.SetRanges(holders[31], few, nil))
	if got := len(e.host.snat.placed[holders[31]].usable); got != len(few) {
		t.Errorf("a server with few ranges uses %d of %d", got, len(few))
	}
	if got := len(e.host.snat.placed[holders[0]].usable); got != len(all) {
		t.Errorf("the first server uses %d of %d ranges", got, len(all))
	}
	last := len(e.host.snat.placed[holders[30]].usable)
	if last == 0 || last >= len(all) {
		t.Errorf("the last of those that want all uses %d of %d ranges, want a part", last, len(all))
	}
	if n := e.flowTotals().SNAT.Short; n == 0 || n > 31 {
		t.Errorf("%d servers use a part, want some of 31", n)
	}
	must(t, e.host.SetRanges(holders[30], few, nil))
	if n := e.host.snat.short[holders[30]]; n {
		t.Error("a server that uses all of its ranges counts as one that does not")
	}
}
