package dataplane

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/shuntlb/shunt/internal/fit"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// manyBindings are n bindings of single ports, of as many VIPs as that takes.
func manyBindings(n int) (out []plan.Binding) {
	vip := netip.MustParseAddr("203.0.113.100")
	for len(out) < n {
		b := bind(lb.TCP, vip.String(), dip4, dip4, true)
		for port := 1; port < 1<<16 && len(out) < n; port++ {
			b.Key.Port = uint16(port)
			out = append(out, b)
		}
		vip = vip.Next()
	}
	return out
}

// TestHostTakesItsCapacity: tables take as many bindings as they report, and replace all of them at once. One more is refused by table, and nothing
// changes.
func TestHostTakesItsCapacity(t *testing.T) {
	e := newHostEnv(t).quiet()
	all := manyBindings(hostMaxBindings + 1)
	most := int(e.host.Capacity()[TableBindings])
	e.apply(all[:most]...)
	err := e.host.Apply(HostState{MTU: 1500, Bindings: all})
	if full := (*NoRoom)(nil); !errors.As(err, &full) || full.Table != TableBindings {
		t.Fatalf("one binding too many: %v", err)
	}
	if got := len(e.host.state.bindings); got != most {
		t.Errorf("%d bindings, want %d", got, most)
	}
	// The same number, half of them on other ports and the rest as ranges, which have counters of the same table.
	next := all[: most/2 : most/2]
	for i := range most / 2 {
		b := bind(lb.TCP, "203.0.113.11", dip4, dip4, true)
		b.DIPPort = 0
		b.Key.VIP = netip.AddrFrom4([4]byte{203, 0, 114, byte(i >> 14)})
		b.Key.Port = uint16(i%16384)*2 + 2
		b.Key.PortEnd = b.Key.Port + 1
		next = append(next, b)
	}
	e.apply(next...)
	if got, want := len(e.host.state.plans), len(next); got != want {
		t.Errorf("%d bindings after all were replaced, want %d", got, want)
	}
	if !e.host.Has(&next[0]) || !e.host.Has(&next[len(next)-1]) || e.host.Has(&all[most]) {
		t.Error("Has is wrong about a binding")
	}
}

// TestHostNeedsAreWhatTheTablesTake: needs of VIPs add up to the entries of the maps.
func TestHostNeedsAreWhatTheTablesTake(t *testing.T) {
	single, wide, any := bind(lb.TCP, vip4, dip4, dip4, true), bind(lb.UDP, vip4, dip4, dip4, true), bind(lb.AnyProtocol, "203.0.113.11", dip4, dip4, true)
	wide.Key.Port, wide.Key.PortEnd, wide.DIPPort = 1000, 2001, 0
	any.Key.Port, any.DIPPort = 0, 0
	co := bind(lb.TCP, "203.0.113.12", dip4, dip4, false)
	co.Cookie = true
	for _, own := range []int{0, 2} {
		used := map[string]uint64{}
		addrs := map[fit.Need]bool{}
		for _, vip := range [][]plan.Binding{{single, wide}, {any}, {co}} {
			for _, n := range HostNeeds(vip, own, false) {
				if n.Of != nil {
					addrs[n] = true
					continue
				}
				used[n.Table] += n.Units
			}
		}
		s := HostState{MTU: 1500, Bindings: []plan.Binding{single, wide, any, co}}
		for _, b := range s.Bindings {
			if own > 0 {
				s.Spreads = append(s.Spreads, &HostSpread{Key: b.Key, Rewrite: b.Rewrite, Addresses: []netip.Addr{netip.MustParseAddr("10.20.1.1"), netip.MustParseAddr("10.20.1.2")}})
			}
		}
		w, err := wantedTables(s)
		must(t, err)
		if got, want := used[TableBindingParts], uint64(len(w.ranges)); got != want {
			t.Errorf("%d own addresses: needs of %d parts of ranges, the map has %d", own, got, want)
		}
		// A range takes a counter, and its spread a place of the same count.
		if got, want := used[TableBindings], uint64(len(w.bindings)+1+own); got != want {
			t.Errorf("%d own addresses: needs of %d bindings, the maps have %d", own, got, want)
		}
		if got := used[TableHandshakes]; got != 1 {
			t.Errorf("needs of %d handshakes, want 1", got)
		}
		if len(addrs) != 4 {
			t.Errorf("%d addresses, want three VIPs and a DIP", len(addrs))
		}
	}
}
