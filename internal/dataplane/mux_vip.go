package dataplane

import (
	"fmt"
	"math"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
)

// stageVIPs gives the slots of VIPs what they say beside the endpoints: the guard, who takes fragments without ports (of
// several the first), and how many echo requests are answered. All endpoints of these VIPs are given.
func (c *change) stageVIPs(endpoints []MuxEndpoint, vips []MuxVIP) error {
	pings := map[lb.EndpointKey]uint64{}
	for _, v := range vips {
		pings[lb.EndpointKey{VNI: v.VNI, VIP: v.VIP}] = min(v.Limits.Ping, math.MaxUint32)
	}
	extras := make(map[lb.EndpointKey]muxEndpointExtra, len(c.vips))
	for _, k := range c.vips {
		extras[k] = muxEndpointExtra{Guard: c.guardOf[k]}
	}
	for _, w := range endpoints {
		if w.Fragments3Tuple {
			x := extras[vipKey(w.Key)]
			x.takeFragments(w.Key.Protocol, c.t.entries[w.Key].slot)
			extras[vipKey(w.Key)] = x
		}
	}
	for _, k := range c.vips {
		e, x := c.t.entries[k], extras[k]
		c.stagePings(e, pings[k])
		want := &x
		if x == (muxEndpointExtra{}) {
			want = nil
		}
		if err := c.stageExtra(e, want); err != nil {
			return fmt.Errorf("VIP %v: %w", k.VIP, err)
		}
	}
	return nil
}

// takeFragments makes the endpoint of a slot the taker of a protocol's fragments, unless there is one.
func (x *muxEndpointExtra) takeFragments(p lb.Protocol, slot uint32) {
	switch {
	case p == lb.TCP && x.FragmentsTcp == 0:
		x.FragmentsTcp = slot + 1
	case p == lb.UDP && x.FragmentsUdp == 0:
		x.FragmentsUdp = slot + 1
	}
}

// stagePings gives a VIP the number of echo requests that it answers per second, 0 for the usual one.
func (c *change) stagePings(e *muxEntry, rate uint64) {
	policy := uint64(muxEndpointFlagENDPOINT_VIP_ONLY)<<muxPolicyShiftPOLICY_FLAGS_SHIFT | rate
	if policy == e.policy {
		return
	}
	c.rings = append(c.rings, func() {
		e.policy = policy
		store(&c.t.mem.slots[e.slot].Policy, policy)
	})
}

// checkOuters refuses two members of an endpoint that share an outer destination, unless the tunnel names the member.
func checkOuters(e MuxEndpoint) error {
	if e.Encap == EncapGUE {
		return nil
	}
	var few [16][16]byte // are compared with each other faster than a map is made
	if len(e.Members) <= len(few) {
		for i, m := range e.Members {
			few[i] = m.Outer.As16()
			if other := slices.Index(few[:i], few[i]); other >= 0 {
				return sharedOuter(e.Members[other], m)
			}
		}
		return nil
	}
	seen := make(map[[16]byte]MuxMember, len(e.Members))
	for _, m := range e.Members {
		if other, ok := seen[m.Outer.As16()]; ok {
			return sharedOuter(other, m)
		}
		seen[m.Outer.As16()] = m
	}
	return nil
}

func sharedOuter(a, b MuxMember) error {
	return fmt.Errorf("members %d and %d: outer destination %s: may be shared with encapsulation gue only", a.ID, b.ID, b.Outer)
}
