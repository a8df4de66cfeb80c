package lb

import "net/netip"

// Validate returns the faults of each object by itself, and objects named twice; nil when there is none.
func Validate(objects ...Object) []Violation { return nil }

// ValidateState returns the faults between objects that are valid by themselves: all is the wanted state of everything.
func ValidateState(all []Object) []Violation { return nil }

// SetDefaults fills in what is zero and has a default; Backend.Weight is left alone, since 0 is a weight.
func SetDefaults(o Object) {}

// Equal tells whether two objects are the same once defaults are filled in.
func Equal(a, b Object) bool { return false }

// Outer is the outer destination of a member: the DIP when the host address is of its family, else the host address.
func Outer(dip, host netip.Addr) netip.Addr {
	if dip.Is4() == host.Is4() {
		return dip
	}
	return host
}

// DIP returns the backend's address of the same family as vip.
func (b *Backend) DIP(vip netip.Addr) (dip netip.Addr, ok bool) {
	for _, a := range b.DIPs {
		if a.Is4() == vip.Is4() {
			return a, true
		}
	}
	return netip.Addr{}, false
}
