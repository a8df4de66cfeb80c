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

// servers keeps the program that inspects packets of servers attached to the devices of those that
// have bindings or SNAT. Before the first plan it keeps the state that the previous agent left.
type servers struct {
	*devices
	tables dataplane.HostTables

	// mu guards the fields below. Taken after that of devices.
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

// bound sets the bindings in the tables, which no caller changes afterwards. When it returns, the
// program is on the devices of servers whose ways are known. If the senders are unchanged, it does
// not touch devices and senders. That is the usual case of a change of the plan, and reading the
// devices takes several system calls.
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

// opens sets the DIPs of servers whose connections leave with a VIP.
func (s *servers) opens(dips []netip.Addr) {
	s.mu.Lock()
	s.snat = dips
	s.countLocked()
	s.mu.Unlock()
	s.again()
}

// countLocked updates dips to those of all servers, and requests the ways to them. mu is held.
func (s *servers) countLocked() {
	dips := slices.Clone(s.snat)
	for i := range s.bindings {
		dips = append(dips, s.bindings[i].DIP)
	}
	slices.SortFunc(dips, netip.Addr.Compare)
	s.dips = slices.Compact(dips)
	s.hops.Want(s.dips)
}

// choose selects the ways to the servers of the plan.
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

// put attaches the program to devices, with the senders allowed there.
func (s *servers) put(ways netdev.Ways, want []int) (on []int, err error) {
	s.mu.Lock()
	bindings, snat := s.bindings, s.snat
	s.mu.Unlock()
	return s.tables.Serve(dataplane.HostServers{Devices: want, Senders: sendersOf(bindings, snat, ways, want)})
}
