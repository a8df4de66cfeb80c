package manager

import (
	"context"
	"net"
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// managerAddrs returns the addresses at which managers serve clients and form the store, with their
// names. It includes managers that are up, and members of the store that are down.
func (m *Manager) managerAddrs() map[netip.Addr]string {
	out := map[netip.Addr]string{}
	add := func(name string, texts ...string) {
		for _, text := range texts {
			host, _, err := net.SplitHostPort(text)
			if err != nil {
				host = text
			}
			if addr, err := netip.ParseAddr(host); err == nil {
				out[addr.Unmap().WithZone("")] = name
			}
		}
	}
	if m.o.Cluster != nil {
		// A member that has left the store cannot lead, and so does not write.
		members, _ := m.o.Cluster.Members(context.Background())
		for _, c := range members {
			add(c.Name, c.Peer)
		}
	}
	for _, up := range m.view.present() {
		add(up.GetName(), up.GetAddress(), up.GetPeer())
	}
	add(m.o.Name, apiAddress(m.o), m.o.Peer)
	return out
}

// foreign returns the faults of a change that takes addresses of others; see lb.State.Foreign. by
// is the caller of the whole change.
func (s *snapshot) foreign(by identity, managers map[netip.Addr]string, edited map[ref]lb.Object) []lb.Violation {
	claimant := lb.Claimant{Managers: managers}
	if by.role == pki.RoleTenant {
		claimant.Tenant = by.tenant
	}
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return s.v.wanted.Foreign(claimant, edits(edited)...)
}

// edits returns the changes of objects in the form of package lb.
func edits(edited map[ref]lb.Object) []lb.Edit {
	out := make([]lb.Edit, 0, len(edited))
	for r, o := range edited {
		out = append(out, lb.Edit{Kind: r.kind, Name: r.name, Object: o})
	}
	return out
}
