package netdev

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NextHop is how the kernel would send to a destination.
type NextHop struct {
	// MAC of the neighbour.
	MAC [6]byte
	// Ifindex of the device that frames leave by: of a VLAN device the parent, of a bond a slave.
	Ifindex int
	// Tag of the VLAN: TPID:16 | TCI:16, 0 none.
	Tag uint32
	// MTU of the path in bytes: the route's where it has one, else the device's.
	MTU int
	// Source is the address that the kernel would send from, Own the Ethernet address of the device.
	Source netip.Addr
	Own    [6]byte
	// Resolved: MAC is valid. Ifindex and MTU are known as soon as there is a route.
	Resolved bool
}

// resync is how often everything is read afresh, should a notification have been lost. Many destinations are read afresh less
// often: each takes resyncShare, of which reading it is about one in a hundred.
const (
	resync      = 15 * time.Second
	resyncShare = 2 * time.Millisecond
)

// resyncAfter is when so many destinations are read afresh.
func resyncAfter(destinations int) time.Duration {
	return max(resync, time.Duration(destinations)*resyncShare)
}

// NextHops follows routes, neighbours and links and tells how wanted destinations are reached. The kernel is made to
// resolve their neighbours and to keep them resolved. It is safe for concurrent use.
type NextHops struct {
	poke chan struct{}

	mu   sync.Mutex
	want []netip.Addr
}

// NewNextHops makes a follower that wants nothing.
func NewNextHops() *NextHops { return &NextHops{poke: make(chan struct{}, 1)} }

// Want replaces the destinations, which nobody changes in place afterwards. Nothing is read again of those of before: the kernel
// tells what changes.
func (n *NextHops) Want(destinations []netip.Addr) {
	sorted := inOrder(destinations)
	n.mu.Lock()
	same := slices.Equal(n.want, sorted)
	if !same {
		n.want = sorted
	}
	n.mu.Unlock()
	if same {
		return
	}
	select {
	case n.poke <- struct{}{}:
	default:
	}
}

// inOrder are addresses in order, each once.
func inOrder(addresses []netip.Addr) []netip.Addr {
	for i := 1; i < len(addresses); i++ {
		if !addresses[i-1].Less(addresses[i]) {
			sorted := slices.Clone(addresses)
			slices.SortFunc(sorted, netip.Addr.Compare)
			return slices.Compact(sorted)
		}
	}
	return addresses
}

func (n *NextHops) wanted() []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.want
}

// Run follows the present namespace until ctx ends. changed gets the full map, one entry for each wanted destination,
// whenever it differs from the last; it is never called concurrently.
func (n *NextHops) Run(ctx context.Context, changed func(map[netip.Addr]NextHop)) error {
	var last map[netip.Addr]NextHop
	for ctx.Err() == nil {
		if err := n.follow(ctx, &last, changed); err != nil {
			return err
		}
	}
	return nil
}

// follow runs until ctx ends or the kernel drops the subscription, as it does when notifications overflow.
func (n *NextHops) follow(ctx context.Context, last *map[netip.Addr]NextHop, changed func(map[netip.Addr]NextHop)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := subscribe(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTimer(resync)
	defer tick.Stop()
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer kernel.Close()
	hops := hopTable{look: func(dst netip.Addr, links map[int]netlink.Link) (hop, bool) { return lookup(kernel, dst, links) }}
	// full: routes are read again, not only neighbours.
	full := true
	for {
		now, err := hops.read(n.wanted(), full)
		if err == nil && (*last == nil || !maps.Equal(*last, now)) {
			*last = now
			changed(maps.Clone(now))
		}
		if full {
			tick.Reset(resyncAfter(len(now)))
		}
		full = false
		select {
		case <-ctx.Done():
			return nil
		case <-n.poke:
			// What is new is looked up.
		case <-tick.C:
			full = true
		case e, open := <-events:
			if !open {
				return nil
			}
			full = e == routeEvent
		}
		full = drain(events) || full
	}
}

// drain takes what is queued, so that a storm of notifications is one reading.
func drain(events <-chan event) (routes bool) {
	for {
		select {
		case e, open := <-events:
			if !open {
				return routes
			}
			routes = routes || e == routeEvent
		default:
			return routes
		}
	}
}

// hop is where a route points: the device and the neighbour on it.
type hop struct {
	ifindex int
	gateway netip.Addr
	mtu     int
	source  netip.Addr
}

// hopTable remembers the routes between readings; those to nowhere are zero.
type hopTable struct {
	routes map[netip.Addr]hop
	of     []netip.Addr // the destinations they are to
	links  map[int]netlink.Link
	// look is lookup; tests count.
	look func(netip.Addr, map[int]netlink.Link) (hop, bool)
}

// read reads neighbours, and the routes of destinations that were not wanted at the last reading: of all when it is full.
func (h *hopTable) read(want []netip.Addr, full bool) (map[netip.Addr]NextHop, error) {
	h.readRoutes(want, full)
	known, err := neighbours()
	if err != nil {
		return nil, err
	}
	out := make(map[netip.Addr]NextHop, len(want))
	asked := map[hop]bool{}
	for _, dst := range want {
		way := h.routes[dst]
		if way == (hop{}) {
			out[dst] = NextHop{}
			continue
		}
		found := known[neighbour{way.ifindex, way.gateway}]
		by, carried := carriedBy(h.links, way.ifindex)
		if carried {
			out[dst] = NextHop{
				MAC: found.mac, Ifindex: by.ifindex, Tag: by.tag, MTU: way.mtu, Source: way.source, Own: ownAddress(h.links[by.ifindex]), Resolved: found.resolved,
			}
		} else {
			out[dst] = NextHop{Ifindex: way.ifindex, MTU: way.mtu}
		}
		way.mtu, way.source = 0, netip.Addr{}
		if !found.kept && !asked[way] {
			asked[way] = true
			keepResolved(way)
		}
	}
	return out, nil
}

// readLinks lists the devices by index.
func readLinks() map[int]netlink.Link {
	out := map[int]netlink.Link{}
	if links, err := netlink.LinkList(); err == nil {
		for _, l := range links {
			out[l.Attrs().Index] = l
		}
	}
	return out
}

// readRoutes brings routes to those of the wanted destinations.
func (h *hopTable) readRoutes(want []netip.Addr, full bool) {
	if full {
		h.routes, h.links = nil, readLinks()
	} else if len(want) == len(h.of) && (len(want) == 0 || &want[0] == &h.of[0]) {
		return
	}
	h.of = want
	routes, fresh := make(map[netip.Addr]hop, len(want)), false
	for _, dst := range want {
		way, known := h.routes[dst]
		if !known {
			if !full && !fresh {
				h.links, fresh = readLinks(), true
			}
			way, _ = h.look(dst, h.links)
		}
		routes[dst] = way
	}
	h.routes = routes
}

// lookup asks the kernel for the route of one destination; destinations of this machine itself have none.
func lookup(kernel *netlink.Handle, dst netip.Addr, links map[int]netlink.Link) (hop, bool) {
	routes, err := kernel.RouteGet(dst.AsSlice())
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		return hop{}, false
	}
	r := routes[0]
	way := hop{ifindex: r.LinkIndex, gateway: dst}
	if l := links[r.LinkIndex]; l != nil {
		way.mtu = l.Attrs().MTU
	}
	if r.MTU > 0 && r.MTU < way.mtu {
		way.mtu = r.MTU
	}
	if source, ok := netip.AddrFromSlice(r.Src); ok {
		way.source = source.Unmap()
	}
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		way.gateway = gw.Unmap()
	} else if via, ok := r.Via.(*netlink.Via); ok {
		if gw, ok := netip.AddrFromSlice(via.Addr); ok {
			way.gateway = gw.Unmap()
		}
	}
	return way, true
}

// ownAddress is a device's Ethernet address, zero when it has none.
func ownAddress(l netlink.Link) (mac [6]byte) {
	copy(mac[:], l.Attrs().HardwareAddr)
	return mac
}
