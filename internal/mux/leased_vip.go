package mux

import (
	"net/netip"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/dataplane"
)

// leasedVIP is a VIP with SNAT.
type leasedVIP struct {
	service string
	// order is the VIP's position among those with SNAT: the first ones get table space first.
	order   int
	members []dataplane.SNATMember
	// index maps each DIP to its index in members. The index of a removed DIP is reused.
	index map[netip.Addr]uint16
	// leased: servers hold ports of it.
	leased bool
	// fault is why the tables do not have it.
	fault error
}

// configure replaces the DIPs. Those that stay keep their index; new ones follow in the given
// order.
func (v *leasedVIP) configure(dips []*apiv1.SnatDIP) (changed bool, err error) {
	wanted := make(map[netip.Addr]dataplane.SNATMember, len(dips))
	order := make([]netip.Addr, 0, len(dips))
	for _, d := range dips {
		m := dataplane.SNATMember{Encap: d.GetEncap()}
		if m.DIP, err = netip.ParseAddr(d.GetDip()); err != nil {
			return false, err
		}
		if m.Outer, err = netip.ParseAddr(d.GetOuter()); err != nil {
			return false, err
		}
		wanted[m.DIP] = m
		order = append(order, m.DIP)
	}
	members := slices.Clone(v.members) // the tables may hold the old slice
	for dip, i := range v.index {
		if _, ok := wanted[dip]; !ok {
			delete(v.index, dip)
			members[i], changed = dataplane.SNATMember{}, true
		}
	}
	for _, dip := range order {
		m := wanted[dip]
		i, ok := v.index[dip]
		if !ok {
			free := slices.Index(members, dataplane.SNATMember{})
			if free < 0 {
				free = len(members)
				members = append(members, dataplane.SNATMember{})
			}
			i = uint16(free)
			v.index[dip] = i
		}
		m.MTU = members[i].MTU
		changed = changed || members[i] != m
		members[i] = m
	}
	v.members = members
	return changed, nil
}

// follow sets the path MTUs of the members.
func (v *leasedVIP) follow(mtu func(outer netip.Addr) uint32) (changed bool) {
	members := slices.Clone(v.members)
	for i := range members {
		if m := &members[i]; m.Outer.IsValid() && m.MTU != mtu(m.Outer) {
			m.MTU, changed = mtu(m.Outer), true
		}
	}
	v.members = members
	return changed
}
