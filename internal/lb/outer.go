package lb

import (
	"fmt"
	"net/netip"
)

// Overhead returns the bytes that a tunnel adds to a packet: the outer IP header, with GUE also the
// UDP header (8), the GUE header (4) and its private data (12).
func Overhead(encap string, outer netip.Addr) uint32 {
	bytes := uint32(20)
	if outer.Is6() {
		bytes = 40
	}
	if encap == EncapGUE {
		bytes += 8 + 4 + 12
	}
	return bytes
}

// sharedOuter is a DIP whose packets would have the same outer destination as an earlier backend's.
type sharedOuter struct {
	backend, dip, first int
	addr, outer         netip.Addr
}

func (s sharedOuter) wrong() string {
	return fmt.Sprintf("must not share its outer destination %s with backends[%d] with encap ipip: gue tells them apart", s.outer, s.first)
}

// fewOuters is the number of backends up to which comparing all pairs is faster than a map.
const fewOuters = 16

// sharedOuters calls found for the members that only GUE distinguishes. Members for IPv4 and IPv6
// VIPs do not conflict.
func (e *Endpoint) sharedOuters(found func(sharedOuter)) {
	type key struct {
		outer netip.Addr
		v4    bool
	}
	var many map[key]int
	if len(e.Backends) > fewOuters {
		many = make(map[key]int, 2*len(e.Backends))
	}
	for _, v4 := range [2]bool{true, false} {
		var few [fewOuters]key
		for i := range e.Backends {
			for k, dip := range e.Backends[i].DIPs {
				if dip.Is4() != v4 {
					continue
				}
				at := key{Outer(dip, e.Backends[i].Host), v4}
				first, twice := i, false
				if many == nil {
					for first = 0; first < i && few[first] != at; first++ {
					}
					twice = first < i
					few[i] = at
				} else if first, twice = many[at]; !twice {
					many[at] = i
				}
				if twice {
					found(sharedOuter{i, k, first, dip, at.outer})
				}
			}
		}
	}
}
