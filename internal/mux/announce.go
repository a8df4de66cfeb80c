package mux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// announcement holds everything that determines the routes to announce.
type announcement struct {
	node lb.Node
	// fallback are the interface's addresses, for a family of which the Node object has none.
	fallback []netip.Addr
	peers    []bgp.Peer
	// vips, sorted, are those in the data plane that have a usable member or ports held by servers.
	vips []netip.Addr
	// ranks are the non-zero ranks of routes (bgp.Route.Rank): routes of other muxes are preferred
	// to these.
	ranks map[netip.Addr]uint8
	phase phase
}

// state returns the wanted state of the speaker: routes to the VIPs and to the addresses that
// servers of path nat reply to. An address of a family of which the node has no address cannot be
// announced; the error names it, and the state has the others.
func (a announcement) state() (bgp.State, error) {
	if a.node.BGP == nil {
		return bgp.State{}, nil
	}
	out := bgp.State{ASN: a.node.BGP.ASN, RouterID: a.routerID(), Peers: a.peers}
	if !out.RouterID.IsValid() {
		return bgp.State{}, errors.New("bgp.routerId: empty: must be given where the node has no IPv4 address")
	}
	if a.phase == gone {
		return out, nil
	}
	hops := [...]netip.Addr{a.address(false), a.address(true)}
	out.Routes = make([]bgp.Route, 0, len(a.vips))
	var errs []error
	routes := a.vips
	if a.node.NAT != nil {
		routes = slices.Concat(routes, a.node.NAT.Addresses)
	}
	for _, vip := range routes {
		hop := hops[0]
		if vip.Is4() {
			hop = hops[1]
		}
		if !hop.IsValid() {
			errs = append(errs, fmt.Errorf("announce %v: the node has no address of its family", vip))
			continue
		}
		out.Routes = append(out.Routes, bgp.Route{
			Prefix: netip.PrefixFrom(vip, vip.BitLen()), NextHop: hop, Graceful: a.phase == leaving, Rank: a.ranks[vip],
		})
	}
	if len(routes) > len(a.vips) {
		slices.SortFunc(out.Routes, func(x, y bgp.Route) int { return x.Prefix.Addr().Compare(y.Prefix.Addr()) })
	}
	slices.SortFunc(errs, func(x, y error) int { return strings.Compare(x.Error(), y.Error()) })
	return out, errors.Join(errs...)
}

// whole reports whether the node has an address of each family, so that state returns no error.
func (a announcement) whole() bool {
	return a.node.BGP == nil || a.routerID().IsValid() && a.address(true).IsValid() && a.address(false).IsValid()
}

func (a announcement) routerID() netip.Addr {
	if a.node.BGP.RouterID.IsValid() {
		return a.node.BGP.RouterID
	}
	return a.address(true)
}

// address returns the node's own address of a family, else the zero value.
func (a announcement) address(v4 bool) netip.Addr {
	for _, list := range [][]netip.Addr{a.node.Addresses, a.fallback} {
		for _, addr := range list {
			if addr.Is4() == v4 {
				return addr
			}
		}
	}
	return netip.Addr{}
}

// peersOf returns the peers with their passwords. A peer whose password cannot be read keeps its
// previous one. Without one the peer is left out, because a session without password is not the
// configured one.
func peersOf(b *lb.BGP, before []bgp.Peer, read func(file string) ([]byte, error)) ([]bgp.Peer, error) {
	if b == nil {
		return nil, nil
	}
	var out []bgp.Peer
	var errs []error
	for _, p := range b.Peers {
		peer := bgp.Peer{Address: p.Address, ASN: p.ASN, TTLSecurity: uint8(p.TTLSecurity), Multihop: uint8(p.Multihop)}
		if p.BFD != nil {
			peer.BFD = &bgp.BFD{Transmit: p.BFD.Transmit, Receive: p.BFD.Receive, Multiplier: p.BFD.Multiplier}
		}
		if p.PasswordFile != "" {
			var err error
			if peer.Password, err = readPassword(p.PasswordFile, read); err != nil {
				errs = append(errs, fmt.Errorf("bgp peer %v: %w", p.Address, err))
				i := slices.IndexFunc(before, func(old bgp.Peer) bool { return old.Address == p.Address && old.Password != "" })
				if i < 0 {
					continue
				}
				peer.Password = before[i].Password
			}
		}
		out = append(out, peer)
	}
	return out, errors.Join(errs...)
}

// readPassword returns the first line of a file.
func readPassword(file string, read func(file string) ([]byte, error)) (string, error) {
	data, err := read(file)
	if err != nil {
		return "", fmt.Errorf("read passwordFile: %w", err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	if line = strings.TrimSuffix(line, "\r"); line == "" {
		return "", fmt.Errorf("passwordFile: %s: its first line is empty", file)
	}
	return line, nil
}

// withdrawFirst withdraws the routes of VIPs that are about to leave the tables. An error is only
// logged, because a dead speaker must not block the plan.
func (a *Agent) withdrawFirst(ctx context.Context, p plan.Plan, peers []bgp.Peer) {
	a.speaking.Lock()
	defer a.speaking.Unlock()
	a.mu.Lock()
	var next announcement
	if a.ready {
		next = a.announcementLocked()
	} else {
		next = announcement{
			node: p.Node, fallback: a.o.Addresses, peers: peers, vips: a.servedLocked(), ranks: a.o.Leases.ranks(),
			phase: a.drain.phase(a.o.Clock.Now(), a.o.DrainWait),
		}
	}
	a.mu.Unlock()
	want, _ := next.state()
	a.said = said{}
	if err := a.o.Speaker.Set(ctx, want); err != nil {
		a.o.Log.Warn("withdraw before the tables change", "error", err)
	}
}

// reachableLocked reports whether the kernel has a route to a tunnel destination.
func (a *Agent) reachableLocked(outer netip.Addr) bool {
	hop, asked := a.hops[outer]
	return reaches(hop, asked)
}

// announcementLocked returns the announcement under the applied plan.
func (a *Agent) announcementLocked() announcement {
	a.judgeLocked()
	if a.routesMoved {
		a.announced, a.routesMoved = make([]netip.Addr, 0, len(a.comeback.offered)), false
		for vip := range a.comeback.offered {
			if a.inTables[vip] {
				a.announced = append(a.announced, vip)
			}
		}
		slices.SortFunc(a.announced, netip.Addr.Compare)
	}
	return announcement{
		node: a.plan.Node, fallback: a.o.Addresses, peers: a.peers, vips: a.announced, ranks: a.o.Leases.ranks(),
		phase: a.drain.phase(a.o.Clock.Now(), a.o.DrainWait),
	}
}

// judgeLocked decides which VIPs may be announced, among those that changed or are held down.
func (a *Agent) judgeLocked() {
	now := a.o.Clock.Now()
	a.followOutboundLocked()
	judge := func(vip netip.Addr, v vipHealth) {
		v.outbound = a.outbound[vip]
		a.routesMoved = a.comeback.judge(now, vip, v) || a.routesMoved
	}
	a.roster.look(a.reachableLocked, judge)
	for vip := range a.comeback.held {
		judge(vip, a.roster.vips.get(vip))
	}
}

// servedLocked returns, before the first plan is applied, the VIPs in the tables that can be served
// under the plan that is being applied.
func (a *Agent) servedLocked() []netip.Addr {
	served := map[netip.Addr]bool{}
	for key, g := range a.roster.groups {
		if a.inTables[key.VIP] && !served[key.VIP] && a.roster.serves(g, a.reachableLocked) {
			served[key.VIP] = true
		}
	}
	a.followOutboundLocked()
	for vip := range a.outbound {
		if a.inTables[vip] {
			served[vip] = true
		}
	}
	return slices.SortedFunc(maps.Keys(served), netip.Addr.Compare)
}
