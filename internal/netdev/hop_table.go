package netdev

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// hop is where a route points: the device and the neighbour on it, which is the destination itself without a gateway.
type hop struct {
	ifindex int
	gateway netip.Addr
	mtu     int
	source  netip.Addr
}

// kernel is what a hopTable asks; tests have a twin.
type kernel interface {
	// links are the devices by index.
	links() map[int]netlink.Link
	// neighbours are the entries of both families.
	neighbours() (map[neighbour]link, error)
	// routes is that of routeSocket.
	routes(n int, to func(int) netip.Addr, links map[int]netlink.Link, found func(int, hop)) error
	// keep has a neighbour resolved, now and from now on.
	keep(neighbour)
}

// hopTable remembers the routes between readings.
type hopTable struct {
	kernel kernel
	links  map[int]netlink.Link
	want   []netip.Addr // the destinations, in order
	routes []uint32     // of each, in hops
	hops   []hop        // the different ones, and some of before; the first is no route
	known  map[hop]uint32
}

// stale is what has to be read again besides neighbours.
type stale struct {
	// all: every route, and the links.
	all bool
	// within are prefixes: the routes of destinations in these.
	within []netip.Prefix
}

// maxPrefixes bounds those that are told apart.
const maxPrefixes = 256

func (s *stale) add(p netip.Prefix) {
	if s.all || slices.Contains(s.within, p) {
		return
	}
	if s.within = append(s.within, p); len(s.within) > maxPrefixes {
		*s = stale{all: true}
	}
}

// read reads neighbours, and routes: those of destinations that were not wanted at the last reading, and stale ones. After an error
// it has to be told that all is stale.
func (h *hopTable) read(want []netip.Addr, s stale) (Ways, error) {
	if err := h.readRoutes(want, s); err != nil {
		return Ways{}, err
	}
	known, err := h.kernel.neighbours()
	if err != nil {
		return Ways{}, err
	}
	b := newWaysBuilder(want)
	// shared are the ways of hops by gateways, from 1 up.
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

// nextHop is a hop with what is known of its neighbour.
func (h *hopTable) nextHop(way hop, found link) NextHop {
	by, carried := carriedBy(h.links, way.ifindex)
	if !carried {
		return NextHop{Ifindex: way.ifindex, MTU: way.mtu}
	}
	return NextHop{
		MAC: found.mac, Ifindex: by.ifindex, Tag: by.tag, MTU: way.mtu, Source: way.source, Own: ownAddress(h.links[by.ifindex]), Resolved: found.resolved,
	}
}

// readRoutes brings routes to those of the wanted destinations.
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

// intern is the number of a hop.
func (h *hopTable) intern(way hop) uint32 {
	at, ok := h.known[way]
	if !ok {
		at = uint32(len(h.hops))
		h.known[way] = at
		h.hops = append(h.hops, way)
	}
	return at
}

// ownAddress is a device's Ethernet address, zero when it has none.
func ownAddress(l netlink.Link) (mac [6]byte) {
	copy(mac[:], l.Attrs().HardwareAddr)
	return mac
}
