package host

import (
	"net/netip"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// linger is how long a binding stays after its removal from the plan. Hosts receive a change before
// the muxes, so packets that muxes still send to a removed member need the binding.
const linger = 2 * time.Second

// bindingKey is the name of a member in the tunnel (design section 9.2).
type bindingKey struct {
	endpoint lb.EndpointKey
	outer    netip.Addr
	member   uint16 // plan.NoMember with IPIP
}

func keyOf(b plan.Binding) bindingKey { return bindingKey{b.Key, b.Outer, b.TunnelMember()} }

// portless returns the key without its ports.
func portless(k bindingKey) bindingKey {
	k.endpoint.Port, k.endpoint.PortEnd = 0, 0
	return k
}

// leaver is a binding that was removed from the plan.
type leaver struct {
	plan.Binding
	until time.Time
}

// leave returns the leavers after a change of plan at `now`: the previous ones and the removed
// bindings, without those that were added again, those that are due, and port ranges that overlap a
// present one, because the tables have one binding for a port.
func leave(leavers []leaver, before, after []plan.Binding, now time.Time) []leaver {
	present := make(map[bindingKey]bool, len(after))
	ranges := map[bindingKey][]lb.EndpointKey{}
	for _, b := range after {
		present[keyOf(b)] = true
		if b.Key.PortEnd != 0 {
			of := portless(keyOf(b))
			ranges[of] = append(ranges[of], b.Key)
		}
	}
	overlaps := func(b *plan.Binding) bool {
		return b.Key.PortEnd != 0 && slices.ContainsFunc(ranges[portless(keyOf(*b))], func(k lb.EndpointKey) bool {
			return k.Port <= b.Key.PortEnd && b.Key.Port <= k.PortEnd
		})
	}
	var out []leaver
	keep := func(l leaver) {
		if !present[keyOf(l.Binding)] && l.until.After(now) && !overlaps(&l.Binding) {
			present[keyOf(l.Binding)] = true
			out = append(out, l)
		}
	}
	for _, b := range before {
		keep(leaver{b, now.Add(linger)})
	}
	for _, l := range leavers {
		keep(l)
	}
	return out
}
