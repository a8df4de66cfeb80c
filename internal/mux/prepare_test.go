package mux

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// A batch of changes results in the same rings as the same changes one by one, and as a node that
// has just started.
func TestPrepareEqualsOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		batch, single := ringsOfTables(), ringsOfTables()
		endpoints := make([]plan.Endpoint, rapid.IntRange(1, 3*prepareBatch).Draw(t, "endpoints"))
		for i := range endpoints {
			endpoints[i] = plan.Endpoint{Key: lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.1"), Protocol: lb.TCP, Port: uint16(i)}, RingCode: 6}
		}
		for range rapid.IntRange(1, 3).Draw(t, "rounds") {
			for i := range endpoints {
				endpoints[i].Members = drawRingMembers(t)
			}
			batch.obey(endpoints...)
			fresh := ringsOfTables()
			for i := range slices.Backward(endpoints) {
				e := endpoints[i]
				single.obey(e)
				fresh.obey(e)
				main, backup := batch.held(e.Key)
				main1, backup1 := single.held(e.Key)
				main2, backup2 := fresh.held(e.Key)
				if !slices.Equal(main, main1) || !slices.Equal(main, main2) || !slices.Equal(backup, backup1) || !slices.Equal(backup, backup2) {
					t.Fatalf("endpoint %d with %+v: batch, one by one and fresh differ", i, e.Members)
				}
			}
		}
	})
}

// heldRings is rings with tables that hold them.
type heldRings struct {
	rings
	all  map[lb.EndpointKey]plan.Endpoint
	have map[lb.EndpointKey][2][]uint16
}

func ringsOfTables() *heldRings {
	h := &heldRings{
		rings: rings{build: BuildRing, made: map[lb.EndpointKey]*madeRings{}},
		all:   map[lb.EndpointKey]plan.Endpoint{}, have: map[lb.EndpointKey][2][]uint16{},
	}
	h.rings.held = func(k lb.EndpointKey) (main, backup []uint16) { return h.have[k][0], h.have[k][1] }
	return h
}

// obey changes endpoints and leaves the others as they are.
func (h *heldRings) obey(changed ...plan.Endpoint) {
	for _, e := range changed {
		h.all[e.Key] = e
	}
	endpoints := slices.Collect(maps.Values(h.all))
	h.prepare(endpoints)
	for i, n := range h.next {
		if !n.kept {
			h.have[endpoints[i].Key] = [2][]uint16{n.main, n.backup}
		}
	}
	h.obeyed(endpoints, true)
}

func drawRingMembers(t *rapid.T) []plan.Member {
	members := make([]plan.Member, rapid.IntRange(0, 6).Draw(t, "members"))
	for i := range members {
		members[i] = plan.Member{
			ID: uint16(i), DIP: netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i)), Port: 80,
			Weight: rapid.Uint16Range(0, 3).Draw(t, "weight"), Backup: rapid.Bool().Draw(t, "backup"), Down: rapid.Bool().Draw(t, "down"),
		}
	}
	return members
}
