package host

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
)

// servers keeps the program that sees what servers send on the devices of those that have bindings or SNAT. Before the first plan it leaves
// what it finds of an agent before.
type servers struct {
	*devices
	tables dataplane.HostTables

	// mu guards what follows. Taken after that of devices.
	mu       sync.Mutex
	planned  bool
	bindings []plan.Binding
	snat     []netip.Addr         // DIPs with SNAT
	dips     []netip.Addr         // of both, in order, each once
	claims   map[senderClaim]bool // of bindings
}

func newServers(tables dataplane.HostTables, uplinks func() ([]int, error), c clock.Clock, log *slog.Logger) *servers {
	s := &servers{tables: tables}
	s.devices = &devices{
		uplinks: uplinks, put: s.put, choose: s.choose, careful: true, clock: c, log: log, hops: netdev.NewNextHops(),
		has: "what servers send is looked at", lacks: "what servers send by some devices is not looked at",
	}
	return s
}

// bound takes the bindings that the tables have now, which no caller changes afterwards. When it returns, the program is on the devices of
// servers whose ways are known. Bindings with the same senders as before leave devices and senders alone: of a change of the plan they are
// the usual case, and a look at the devices costs several system calls.
func (s *servers) bound(bindings []plan.Binding) {
	claims := claimsOf(bindings)
	s.mu.Lock()
	same := s.planned && maps.Equal(s.claims, claims)
	s.planned, s.bindings, s.claims = true, bindings, claims
	if !same {
		s.countLocked()
	}
	s.mu.Unlock()
	if !same {
		s.again()
	}
}

// opens takes the DIPs of servers whose connections leave with a VIP.
func (s *servers) opens(dips []netip.Addr) {
	s.mu.Lock()
	s.snat = dips
	s.countLocked()
	s.mu.Unlock()
	s.again()
}

// countLocked makes dips those of all servers, and follows the ways to them.
func (s *servers) countLocked() {
	dips := slices.Clone(s.snat)
	for i := range s.bindings {
		dips = append(dips, s.bindings[i].DIP)
	}
	slices.SortFunc(dips, netip.Addr.Compare)
	s.dips = slices.Compact(dips)
	s.hops.Want(s.dips)
}

// choose picks the ways to the servers of the plan.
func (s *servers) choose(ways netdev.Ways) (netdev.Ways, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	chosen := make(map[netip.Addr]netdev.NextHop, len(s.dips))
	for _, dip := range s.dips {
		hop, ok := ways.To(dip)
		if !ok {
			return netdev.Ways{}, false
		}
		chosen[dip] = hop
	}
	return netdev.WaysOf(chosen), s.planned
}

// put puts the program on devices, with who may send there.
func (s *servers) put(ways netdev.Ways, want []int) (on []int, err error) {
	s.mu.Lock()
	bindings, snat := s.bindings, s.snat
	s.mu.Unlock()
	return s.tables.Serve(dataplane.HostServers{Devices: want, Senders: sendersOf(bindings, snat, ways, want)})
}
