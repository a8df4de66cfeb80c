package mux

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/lb"
)

// announcement is everything that decides what routers are told.
type announcement struct {
	node lb.Node
	// fallback are addresses of the interface, for a family the Node object has none of.
	fallback []netip.Addr
	peers    []bgp.Peer
	// served VIPs have a member to send to; inTables are those the data plane knows. Only a VIP of both is announced.
	served, inTables map[netip.Addr]bool
	phase            phase
}

// state is the wanted state of the speaker. VIPs of a family without an own address cannot be announced and are named
// in the error; the rest is.
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
	var errs []error
	for vip := range a.served {
		if !a.inTables[vip] {
			continue
		}
		hop := a.address(vip.Is4())
		if !hop.IsValid() {
			errs = append(errs, fmt.Errorf("announce %v: the node has no address of its family", vip))
			continue
		}
		out.Routes = append(out.Routes, bgp.Route{
			Prefix: netip.PrefixFrom(vip, vip.BitLen()), NextHop: hop, Graceful: a.phase == leaving,
		})
	}
	slices.SortFunc(out.Routes, func(x, y bgp.Route) int { return x.Prefix.Compare(y.Prefix) })
	slices.SortFunc(errs, func(x, y error) int { return strings.Compare(x.Error(), y.Error()) })
	return out, errors.Join(errs...)
}

func (a announcement) routerID() netip.Addr {
	if a.node.BGP.RouterID.IsValid() {
		return a.node.BGP.RouterID
	}
	return a.address(true)
}

// address is the node's own address of a family.
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

// peersOf reads the peers with their passwords. A peer whose password cannot be read keeps the one of before, else it is
// left out: a session without it would not be the one that was asked for.
func peersOf(b *lb.BGP, before []bgp.Peer, read func(file string) ([]byte, error)) ([]bgp.Peer, error) {
	if b == nil {
		return nil, nil
	}
	var out []bgp.Peer
	var errs []error
	for _, p := range b.Peers {
		peer := bgp.Peer{Address: p.Address, ASN: p.ASN}
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

// readPassword reads the first line of a file.
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
