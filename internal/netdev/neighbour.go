package netdev

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// neighbour identifies an entry of the neighbour tables.
type neighbour struct {
	ifindex int
	address netip.Addr
}

// link is the state of a neighbour entry.
type link struct {
	mac      [6]byte
	resolved bool
	// kept: the kernel keeps it resolved by itself.
	kept bool
}

// validStates are those in which the kernel sends to an entry's address (NUD_VALID).
const validStates = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY

// neighbours reads the tables of both families.
func neighbours() (map[neighbour]link, error) {
	list, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("read neighbours: %w", err)
	}
	out := make(map[neighbour]link, len(list))
	for _, n := range list {
		ip, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			continue
		}
		l := link{
			resolved: n.State&validStates != 0 && len(n.HardwareAddr) == 6,
			kept:     n.State&unix.NUD_PERMANENT != 0 || n.FlagsExt&netlink.NTF_EXT_MANAGED != 0,
		}
		if l.resolved {
			copy(l.mac[:], n.HardwareAddr)
		}
		out[neighbour{n.LinkIndex, ip.Unmap()}] = l
	}
	return out, nil
}

// keepResolved makes the kernel resolve a neighbour now and, from Linux 5.16 on, keep it resolved
// by itself (NTF_EXT_MANAGED). After an error the neighbour stays unresolved.
func keepResolved(which neighbour) {
	family := unix.AF_INET
	if which.address.Is6() {
		family = unix.AF_INET6
	}
	n := &netlink.Neigh{
		LinkIndex: which.ifindex, Family: family, IP: which.address.AsSlice(),
		Flags: netlink.NTF_USE, FlagsExt: netlink.NTF_EXT_MANAGED,
	}
	if netlink.NeighSet(n) != nil {
		n.FlagsExt = 0
		_ = netlink.NeighSet(n)
	}
}

// event is the state that a notification makes stale: the routes of destinations in a prefix, or
// all; neighbours always.
type event struct {
	all    bool
	within netip.Prefix // without address: none
}

// mark adds the event to s.
func (e event) mark(s *stale) {
	switch {
	case e.all:
		*s = stale{all: true}
	case e.within.IsValid():
		s.add(e.within)
	}
}

// routeEvent returns the event of a route change. All is stale after a change of a default route,
// or of a non-unicast route, because a change of this machine's addresses may change the source of
// all other routes.
func routeEvent(r netlink.Route) event {
	if r.Type != unix.RTN_UNICAST || r.Dst == nil {
		return event{all: true}
	}
	address, ok := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	if len(r.Dst.Mask) == net.IPv4len {
		address = address.Unmap()
	}
	p := netip.PrefixFrom(address, bits)
	return event{all: !ok || !p.IsValid(), within: p}
}

// subscribe merges the notifications of routes, links and neighbours until ctx ends.
func subscribe(ctx context.Context) (<-chan event, error) {
	routes, links := make(chan netlink.RouteUpdate, 64), make(chan netlink.LinkUpdate, 64)
	neighs := make(chan netlink.NeighUpdate, 64)
	if err := netlink.RouteSubscribe(routes, ctx.Done()); err != nil {
		return nil, fmt.Errorf("follow routes: %w", err)
	}
	if err := netlink.LinkSubscribe(links, ctx.Done()); err != nil {
		return nil, fmt.Errorf("follow links: %w", err)
	}
	if err := netlink.NeighSubscribe(neighs, ctx.Done()); err != nil {
		return nil, fmt.Errorf("follow neighbours: %w", err)
	}
	out := make(chan event, 64)
	go func() {
		defer close(out)
		for {
			var e event
			var route netlink.RouteUpdate
			open := true
			select {
			case route, open = <-routes:
				e = routeEvent(route.Route)
			case _, open = <-links:
				e.all = true
			case _, open = <-neighs:
			case <-ctx.Done():
				return
			}
			if !open {
				return
			}
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}
