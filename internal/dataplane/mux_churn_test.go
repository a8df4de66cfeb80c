package dataplane

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/wire"
)

// churn drives tables through random plans, step by step, and kills their owner in between.
type churn struct {
	*muxFixture
	r *rand.Rand
	// now is what readers may find of every endpoint: the states that are being left and gone to.
	old, next map[lb.EndpointKey]MuxEndpoint
	// unsure: an owner was killed on the way to old, so that it need not be there whole.
	unsure bool
	held   held
	// state is what was published last.
	state MuxState
}

// TestChurn: whatever store the owner of the tables was killed at, readers before and after it find members of the state
// that was left or of the one gone to, the next owner adopts, and nothing leaks.
func TestChurn(t *testing.T) {
	c := &churn{muxFixture: newMuxFixture(t), r: seeded(t), old: map[lb.EndpointKey]MuxEndpoint{}}
	hops := map[netip.Addr]NextHop{}
	for id := range byte(12) {
		hops[netip.AddrFrom4([4]byte{10, 20, 1, id})] = NextHop{MAC: muxRouter, Ifindex: ingress}
	}
	must(t, c.mux.SetNextHops(hops))
	kills := 0
	for range 1500 {
		want := randomState(c.r, 20)
		c.next = map[lb.EndpointKey]MuxEndpoint{}
		for _, e := range want.Endpoints {
			for i := range e.Members {
				e.Members[i].Alive = true
			}
			c.next[e.Key] = e
		}
		killed := c.transit(want)
		if killed {
			kills++
			// Not adopt: nobody reads in this test, so that nothing need be waited for.
			fresh := newMuxTables(c.mux.memory, c.mux.tables.tick, c.mux.tables.guards.hz)
			fresh.hops.mac = c.mux.tables.hops.mac
			c.mux.tables = fresh
			if err := fresh.adopt(); err != nil {
				t.Fatal(err)
			}
			fresh.hops.wanted = hops
			c.read("after adoption")
			c.unsure = true
			// Both states may show until the next is reached.
			for k, e := range c.next {
				merged := c.old[k]
				merged.Key, merged.Members = k, append(slices.Clone(merged.Members), e.Members...)
				c.old[k] = merged
			}
			continue
		}
		c.old, c.unsure, c.state = c.next, false, want
	}
	t.Logf("killed %d times", kills)
	c.held.release()
	must(t, c.mux.Apply(MuxState{}))
	settle(t, c.mux)
	c.checkEmpty()
}

// transit goes to a state, or part of the way.
func (c *churn) transit(want MuxState) (killed bool) {
	change, err := c.stage(want)
	if err != nil {
		c.t.Fatal(err)
	}
	c.read("staged")
	steps := slices.Concat(change.guards, change.members, change.rings, change.slots, change.ranges, change.gone)
	last := len(steps)
	if c.r.IntN(3) == 0 {
		last = c.r.IntN(len(steps) + 1)
	}
	look := c.r.IntN(8) == 0
	for i, step := range steps[:last] {
		step()
		if look {
			c.read(fmt.Sprintf("after step %d of %d", i+1, len(steps)))
		}
	}
	if last < len(steps) {
		c.held = held{}
		return true
	}
	c.held.published(change, c.r.IntN(3) == 0)
	c.read("released")
	return false
}

// stage stages a state, as a whole or by what differs from the one of before.
func (c *churn) stage(want MuxState) (*change, error) {
	by, some := changeBetween(c.state, want)
	if some = some && c.mux.tables.whole && c.r.IntN(2) == 0; some {
		return c.held.stageBy(func(crowded bool) (*change, error) { return c.mux.tables.stageChange(by, crowded) })
	}
	return c.held.stage(c.mux.tables, want)
}

// read sends packets to some endpoints.
func (c *churn) read(when string) {
	c.t.Helper()
	for range 4 {
		k := lb.EndpointKey{VIP: []netip.Addr{muxVIP4, muxVIP6}[c.r.IntN(2)], Protocol: lb.TCP, Port: uint16(1 + c.r.IntN(12))}
		p := tcp4(k.Port)
		if k.VIP == muxVIP6 {
			p = tcp6(k.Port)
		}
		p.Payload = wire.TCP{SrcPort: uint16(c.r.Uint32()), DstPort: k.Port}
		before, after := c.old[k], c.next[k]
		verdict, out := c.run(p.Frame())
		if verdict != xdpTX {
			if !c.unsure && common(before, after) {
				c.t.Fatalf("%s: %v: verdict %d, though members stay: %v", when, k, verdict, c.reasonsNow())
			}
			continue
		}
		a := netip.AddrFrom4([4]byte(out[30:34]))
		if binary.BigEndian.Uint16(out[12:]) != wire.EtherTypeIPv4 || !names(before, a) && !names(after, a) {
			c.t.Fatalf("%s: %v: sent to %v, neither in %v nor in %v", when, k, a, before.Members, after.Members)
		}
	}
	if n := c.reasonsNow()["internal"]; n != 0 {
		c.t.Fatalf("%s: internal counted %d times", when, n)
	}
}

func names(e MuxEndpoint, outer netip.Addr) bool {
	return slices.ContainsFunc(e.Members, func(m MuxMember) bool { return m.Outer == outer })
}

// common says whether both have a member that is choosable in each.
func common(a, b MuxEndpoint) bool {
	if len(a.Ring) == 0 || len(b.Ring) == 0 {
		return false
	}
	for _, m := range a.Members {
		for _, n := range b.Members {
			if m.ID == n.ID && m.Choosable && n.Choosable {
				return true
			}
		}
	}
	return false
}
