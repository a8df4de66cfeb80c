package lb

import "net/netip"

// Outer returns the outer destination of a member: the DIP if the host address is of its family,
// else the host address.
func Outer(dip, host netip.Addr) netip.Addr {
	if dip.Is4() == host.Is4() {
		return dip
	}
	return host
}

// DIP returns the backend's address of the VIP's family.
func (b *Backend) DIP(vip netip.Addr) (dip netip.Addr, ok bool) {
	for _, a := range b.DIPs {
		if a.Is4() == vip.Is4() {
			return a, true
		}
	}
	return netip.Addr{}, false
}
