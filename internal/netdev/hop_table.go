package netdev

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// hop is the target of a route: the device and the neighbour on it. Without a gateway the neighbour
// is the destination itself.
type hop struct {
	ifindex int
	gateway netip.Addr
	mtu     int
	source  netip.Addr
}

// kernel is the source of a hopTable's data; tests use a fake.
type kernel interface {
	// links returns the devices by index.
	links() map[int]netlink.Link
	// neighbours returns the entries of both families.
	neighbours() (map[neighbour]link, error)
	// routes is routeSocket.routes.
	routes(n int, to func(int) netip.Addr, links map[int]netlink.Link, found func(int, hop)) error
	// keep makes the kernel resolve a neighbour and keep it resolved.
	keep(neighbour)
}

// hopTable caches the routes between reads.
type hopTable struct {
	kernel kernel
	links  map[int]netlink.Link
	want   []netip.Addr // the destinations, in order
	routes []uint32     // of each, in hops
	// the different ones, and some that are no longer used; the first is no route
	hops  []hop
	known map[hop]uint32
}

// stale is the state to read again in addition to neighbours.
type stale struct {
	// all: every route, and the links.
	all bool
	// within are prefixes: the routes of the destinations in them.
	within []netip.Prefix
}

// maxPrefixes is the largest number of prefixes before all routes are stale.
const maxPrefixes = 256

func (s *stale) add(p netip.Prefix) {
	if s.all || slices.Contains(s.within, p) {
		return
	}
	if s.within = append(s.within, p); len(s.within) > maxPrefixes {
		*s = stale{all: true}
	}
}

// read reads neighbours, and the routes of destinations that are new since the last read or stale.
// After an error the next call must mark all as stale.
func (h *hopTable) read(want []netip.Addr, s stale) (Ways, error) {
	if err := h.readRoutes(want, s); err != nil {
		return Ways{}, err
	}
	known, err := h.kernel.neighbours()
	if err != nil {
		return Ways{}, err
	}
	b := newWaysBuilder(want)
	// shared maps a hop with a gateway to the index of its next hop + 1.
	shared, asked := make([]uint32, len(h.hops)), map[neighbour]bool{}
	for i, dst := range want {
		at := h.routes[i]
		if shared[at] > 0 {
			b.ways.which[i] = shared[at] - 1
			continue
		}
		way := h.hops[at]
		if at == 0 {
			shared[at] = b.set(i, NextHop{}) + 1
			continue
		}
		next := neighbour{way.ifindex, way.gateway}
		if !way.gateway.IsValid() {
			next.address = dst
		}
		found := known[next]
		set := b.set(i, h.nextHop(way, found))
		if way.gateway.IsValid() {
			shared[at] = set + 1
		}
		if !found.kept && !asked[next] {
			asked[next] = true
			h.kernel.keep(next)
		}
	}
	return b.ways, nil
}

// nextHop returns the NextHop of a hop and the state of its neighbour.
func (h *hopTable) nextHop(way hop, found link) NextHop {
	by, carried := carriedBy(h.links, way.ifindex)
	if !carried {
		return NextHop{Ifindex: way.ifindex, MTU: way.mtu}
	}
	return NextHop{
		MAC: found.mac, Ifindex: by.ifindex, Tag: by.tag, MTU: way.mtu, Source: way.source, Own: ownAddress(h.links[by.ifindex]), Resolved: found.resolved,
	}
}

// readRoutes updates routes to those of the wanted destinations.
func (h *hopTable) readRoutes(want []netip.Addr, s stale) error {
	same := len(want) == len(h.want) && (len(want) == 0 || &want[0] == &h.want[0])
	if s.all {
		h.want, h.routes, h.hops, h.known, same = nil, nil, []hop{{}}, map[hop]uint32{{}: 0}, false
	}
	var missing []uint32
	if !same {
		routes := make([]uint32, len(want))
		before := 0
		for i, dst := range want {
			for before < len(h.want) && h.want[before].Less(dst) {
				before++
			}
			if before < len(h.want) && h.want[before] == dst {
				routes[i] = h.routes[before]
			} else {
				missing = append(missing, uint32(i))
			}
		}
		h.want, h.routes = want, routes
	}
	for _, p := range s.within {
		first, _ := slices.BinarySearchFunc(want, p.Masked().Addr(), netip.Addr.Compare)
		for i := first; i < len(want) && p.Contains(want[i].WithZone("")); i++ {
			missing = append(missing, uint32(i))
		}
	}
	if s.all || len(missing) > 0 {
		h.links = h.kernel.links()
	}
	return h.kernel.routes(len(missing), func(i int) netip.Addr { return want[missing[i]] }, h.links, func(i int, way hop) {
		h.routes[missing[i]] = h.intern(way)
	})
}

// intern returns the index of a hop in hops, and adds it if it is new.
func (h *hopTable) intern(way hop) uint32 {
	at, ok := h.known[way]
	if !ok {
		at = uint32(len(h.hops))
		h.known[way] = at
		h.hops = append(h.hops, way)
	}
	return at
}

// ownAddress returns a device's Ethernet address, zero if it has none.
func ownAddress(l netlink.Link) (mac [6]byte) {
	copy(mac[:], l.Attrs().HardwareAddr)
	return mac
}
