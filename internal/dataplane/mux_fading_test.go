package dataplane

import (
	"testing"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/wire"
)

// TestConnectionIDsFade: an endpoint that had affinity cookie and now remembers flows goes on reading connection ids for a while, as plan.EndpointState.Fades has it.
// Connections that the flow table does not know stay with the server that made their id; one without such ids stays with its first server through a
// silence that a flow of UDP bears.
func TestConnectionIDsFade(t *testing.T) {
	f := newQUICFixture(t, quicKeys)
	nobody := shortHeader([]byte{0xe1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17})
	home := map[uint16]uint16{}
	for port := uint16(4000); port < 4030; port++ {
		began := f.send(port, longHeader(quicInitial, []byte{0xe1, 2, 3, 4, 5, 6, 7, 8}, []byte{9}))
		home[port] = (began + 1) % 3 // the server that the ring does not have for it
	}
	f.setJiffies(f.model.policy.now + 400*f.model.policy.hz)
	f.e.FlowsFirst, f.e.Idle.Untrusted = true, f.e.Idle.Trusted
	f.to(f.e)
	for port, id := range home {
		if got := f.send(port, shortHeader(f.id(id))); got != id {
			t.Fatalf("port %d: a connection from before went to member %d, its id is of %d", port, got, id)
		}
	}
	f.weigh(1)
	if got := f.send(5000, longHeader(quicInitial, []byte{0xe1, 2, 3, 4, 5, 6, 7, 8}, []byte{9})); got != 1 {
		t.Fatalf("a new connection went to member %d", got)
	}
	f.weigh(0, 2)
	for range 3 {
		f.setJiffies(f.model.policy.now + 100*f.model.policy.hz)
		if got := f.send(5000, nobody); got != 1 {
			t.Fatalf("after a silence a connection without ids went to member %d, it is member 1's", got)
		}
	}
	f.weigh(0, 1, 2)
	plain := f.e
	plain.Affinity, plain.QUIC, plain.FlowsFirst = AffinityFlow, nil, false
	f.to(plain)
	if got := f.send(5000, nobody); got != 1 {
		t.Errorf("once nothing is read any more it went to member %d, it is member 1's", got)
	}
	moved := 0
	for port, id := range home {
		if f.send(port, shortHeader(f.id(id))) != id {
			moved++
		}
	}
	if moved == 0 {
		t.Error("the ring has all connections where their ids do: nothing was tested")
	}
}

// TestNATNeedsNoFading: connections of path nat whose endpoint loses its cookies go on, with their server's own timestamps one way and their cookie the other,
// because each has a session that holds both; new ones get plain timestamps.
func TestNATNeedsNoFading(t *testing.T) {
	for _, form := range []CookieForm{CookieSplitR, CookieSplitZ} {
		for _, v6 := range []bool{false, true} {
			f := newNATFixture(t, splitServers(form)...)
			type open struct {
				there  wire.Packet
				flow   natFlow
				cookie uint32
			}
			var all []open
			for from := uint16(1000); from < 1020; from++ {
				there := f.in(stamped(natPacket(v6, false, from, wire.SYN, usualOptions(0)...), 77, 0))
				back := f.out(stamped(serverSays(*there.packet), 5, 77))
				_, w := stampOf(*back.packet, 0)
				all = append(all, open{*there.packet, f.ports[f.portOf(*there.packet)], cookie.SplitBits.Cookie(w)})
			}
			plain := splitServers(form)
			for i := range plain {
				plain[i].Affinity, plain[i].Cookie = AffinityFlow, nil
			}
			f.serve(plain...)
			for i, c := range all {
				server := f.sessions[c.flow].member
				for _, clock := range []uint32{100_000, 200_000} {
					back := f.out(stamped(serverSays(c.there), clock, 77))
					_, w := stampOf(*back.packet, 0)
					if got := cookie.SplitBits.Cookie(w); got != c.cookie {
						t.Fatalf("connection %d: cookie %#x became %#x", i, c.cookie, got)
					}
					got := f.in(stamped(natPacket(v6, false, c.flow.client.Port(), wire.ACK, usualOptions(0)...), 78, w))
					want := clock
					if form == CookieSplitZ {
						want = 0
					}
					if _, echo := stampOf(*got.packet, 1); echo != want {
						t.Fatalf("connection %d: its server's %d came back as %d", i, clock, echo)
					}
				}
				if got := f.sessions[c.flow].member; got != server {
					t.Fatalf("connection %d: member %d became %d", i, server, got)
				}
			}
			there := f.in(stamped(natPacket(v6, false, 3000, wire.SYN, usualOptions(0)...), 77, 0))
			back := f.out(stamped(serverSays(*there.packet), 0x12345678, 77))
			if _, w := stampOf(*back.packet, 0); w != 0x12345678 {
				t.Errorf("a connection that began since got %#x of its server's timestamp", w)
			}
		}
	}
}
