package mux

import (
	"net/netip"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
)

// TestLoadsAreKept: a mux holds the newest load of each member while it is valid.
func TestLoadsAreKept(t *testing.T) {
	fake := clock.NewFake(time.Unix(1000, 0))
	a := &Agent{o: Options{Clock: fake}, loads: loads{table: load.NewTable()}}
	key := lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: 80}
	of := func(id uint16, connections uint32) load.Member {
		return load.Member{Key: load.Key{Endpoint: key, Member: id}, Load: load.Load{Connections: connections, Has: load.HasConnections}}
	}
	a.HeardLoads([]load.Member{of(1, 5), of(2, 6)})
	fake.Advance(load.StaleAfter / 2)
	a.HeardLoads([]load.Member{of(2, 7)})
	expect := func(id uint16, connections uint32, known bool) {
		t.Helper()
		if got, ok := a.LoadOf(key, id); ok != known || got.Connections != connections {
			t.Errorf("member %d: %+v (%v), want %d connections (%v)", id, got, ok, connections, known)
		}
	}
	expect(1, 5, true)
	expect(2, 7, true)
	expect(3, 0, false)
	fake.Advance(load.StaleAfter / 2)
	expect(1, 0, false)
	expect(2, 7, true)
	if l, ok := a.Loads().Of(load.Key{Endpoint: key, Member: 2}, fake.Now()); !ok || l.Connections != 7 {
		t.Errorf("what schedulers see: %+v (%v)", l, ok)
	}
}
