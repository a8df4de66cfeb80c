package host

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// TestRevivedMembersFindWhoHadTheirSlots checks, for plans in which members died and may have
// returned, that every host computes where muxes sent the connections of their slots meanwhile, and
// that no packets are forwarded to those that are still dead.
func TestRevivedMembersFindWhoHadTheirSlots(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const code = 8
		n := rapid.IntRange(2, 12).Draw(rt, "members")
		st := plan.EndpointState{Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}}
		st.Membership = plan.Membership{Generation: 1, RingCode: code, KeyID: 1}
		window := time.Hour
		ep := &lb.Endpoint{Protocol: lb.TCP, Port: 80, RepairWindow: &window}
		away, left := make([]bool, n), 0
		var members []ring.Member
		hosts := []netip.Addr{}
		for i := range n {
			host := netip.MustParseAddr(fmt.Sprintf("10.20.%d.1", i))
			dip := host.Next()
			m := plan.MemberState{ID: uint16(i), Backend: lb.BackendKey{DIP: dip, Port: 80}, Weight: uint16(rapid.IntRange(1, 3).Draw(rt, "weight")), Host: host}
			switch rapid.IntRange(0, 3).Draw(rt, "health") {
			case 0:
				m.Fallen, away[i] = true, true
			case 1:
				m.Revived, away[i] = time.Unix(1, 0), true
			default:
				left++
			}
			st.Members = append(st.Members, m)
			hosts = append(hosts, host)
			members = append(members, ring.Member{ID: m.ID, DIP: dip, Port: 80, Weight: m.Weight})
			ep.Backends = append(ep.Backends, lb.Backend{DIPs: []netip.Addr{dip}, Port: 80, Host: host})
		}
		made, ok := plan.MakeRepair(ep, &st, []plan.Key{{ID: 1}}, lb.EncapIPIP)
		if ok != (left < n) {
			rt.Fatalf("there is something to repair: %v, with %d of %d never away", ok, left, n)
		}
		if !ok || left == 0 {
			return
		}
		whole := ring.Build(code, members)
		for _, own := range hosts {
			var r repairs
			out := r.follow(&plan.Plan{Node: lb.Node{Addresses: []netip.Addr{own}}, Repairs: []plan.Repair{*made}}, nil)
			if len(out) != 1 {
				rt.Fatalf("host %s made %d", own, len(out))
			}
			for slot, turns := range out[0].Turns.Slots {
				want, _ := ring.Choose(whole, code, n, uint64(slot)<<(64-code), func(id uint16) bool { return !away[id] })
				former := want.Member
				if former == whole[slot] {
					former = ring.NoFormer
				}
				if turns.Current() != whole[slot] || turns.Former() != former {
					rt.Fatalf("slot %d has %d after %d, want %d after %d", slot, turns.Current(), turns.Former(), whole[slot], former)
				}
			}
			for _, to := range out[0].Targets {
				if st.Members[to.ID].Fallen {
					rt.Fatalf("member %d is dead and a target", to.ID)
				}
			}
		}
	})
}
