package manager

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestOpinionsAreCounted: after any sequence of reports, omissions, withdrawals and ends of muxes,
// the sum equals that of their newest reports counted again. Times and recoveries follow from the
// sums.
func TestOpinionsAreCounted(t *testing.T) {
	key := lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.UDP, Port: 8000, PortEnd: 8100}
	rapid.Check(t, func(rt *rapid.T) {
		o, now := newOpinions(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		said := map[string]map[uint16]bool{} // valid members in each mux's newest report
		before := map[uint16]plan.Heard{}
		for stream := range uint64(rapid.IntRange(1, 20).Draw(rt, "steps")) {
			now = now.Add(time.Second)
			mux := fmt.Sprintf("mux%d", rapid.IntRange(1, 3).Draw(rt, "mux"))
			s := &session{name: mux, role: lb.RoleMux, number: stream + 1, ctx: t.Context()}
			if rapid.IntRange(0, 4).Draw(rt, "ends") == 0 {
				o.gone(&session{name: mux, number: o.said[mux].stream}, now)
				delete(said, mux)
			} else {
				said[mux] = map[uint16]bool{}
				var members []*apiv1.MemberStatus
				for id := range uint16(6) {
					alive := rapid.Bool().Draw(rt, "alive")
					m := &apiv1.MemberStatus{Vip: "203.0.113.10", Protocol: "udp", Port: 8000, PortEnd: 8100, Member: uint32(id), Alive: alive}
					switch rapid.IntRange(0, 5).Draw(rt, "said") {
					case 0:
						continue
					case 1:
						m.Unknown = true
					default:
						said[mux][id] = alive
					}
					members = append(members, m)
				}
				o.report(s, members, now)
				o.gone(&session{name: mux, number: stream}, now) // the end of an older stream
			}
			heard := o.heard(key)
			dirty := o.take()[key]
			moved := false
			for id := range uint16(6) {
				want := naiveHeard(said, before[id], id, now)
				if got := heard(id); got != want {
					rt.Fatalf("member %d: heard %+v, want %+v of %v", id, got, want, said)
				}
				moved = moved || want.Health != before[id].Health && want.Health != plan.HeardNothing
				before[id] = want
			}
			if dirty != moved {
				rt.Fatalf("dirty is %v, moved %v", dirty, moved)
			}
		}
	})
}

// naiveHeard returns the sum of the reports about a member, given its previous health.
func naiveHeard(said map[string]map[uint16]bool, before plan.Heard, id uint16, now time.Time) plan.Heard {
	health := plan.HeardNothing
	for _, members := range said {
		if alive, known := members[id]; alive {
			health = plan.HeardAlive
		} else if known && health == plan.HeardNothing {
			health = plan.HeardDead
		}
	}
	switch {
	case health == plan.HeardNothing:
		return plan.Heard{}
	case health == before.Health:
		return before
	case health == plan.HeardDead:
		return plan.Heard{Health: health, Since: now}
	case before.Health == plan.HeardDead:
		return plan.Heard{Health: health, Since: now, Fresh: true}
	}
	return plan.Heard{Health: health}
}
