package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/netdev"
)

// withoutCarrier returns whether the node's uplink has no carrier.
func withoutCarrier(node string) effect {
	return func(context.Context) (int, error) {
		out, err := ipOutput(node, "-o", "link", "show", "dev", lab.Uplink)
		if err == nil && !strings.Contains(out, "NO-CARRIER") {
			err = fmt.Errorf("%s has a carrier: %s", node, out)
		}
		if err != nil {
			return 0, err
		}
		return 1, nil
	}
}

// withoutRoute counts the directions between two nodes, of each family that both have, in which the
// kernel refuses to route.
func withoutRoute(a, b string) (effect, error) {
	type direction struct {
		from string
		to   netip.Addr
	}
	var all []direction
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		from, err := cluster.Topology.Find(pair[0])
		if err != nil {
			return nil, err
		}
		to, err := cluster.Topology.Find(pair[1])
		if err != nil {
			return nil, err
		}
		own := both(from.Addresses())
		for i, address := range both(to.Addresses()) {
			if own[i].IsValid() && address.IsValid() {
				all = append(all, direction{pair[0], address})
			}
		}
	}
	return func(ctx context.Context) (int, error) {
		for _, d := range all {
			// Connecting a UDP socket only does a route lookup.
			conn, err := netdev.Dialer(lab.Node{Name: d.from}.Namespace(cluster.Topology.Name))(ctx, "udp", netip.AddrPortFrom(d.to, 9).String())
			if err == nil {
				conn.Close()
				return 0, fmt.Errorf("%s has a route to %s", d.from, d.to)
			}
			if !errors.Is(err, syscall.EINVAL) {
				return 0, err
			}
		}
		return len(all), nil
	}, nil
}

// withdrawnRoutes counts the VIPs of the long connections that the router does not route through a
// mux. It routes all of them now.
func withdrawnRoutes(mux string) (effect, error) {
	n, err := cluster.Topology.Find(mux)
	if err != nil {
		return nil, err
	}
	withdrawn := func() (count int, err error) {
		for i := range echoes {
			for _, vip := range echoVIPs(i) {
				hops, err := cluster.RoutesAtRouter(netip.PrefixFrom(vip, vip.BitLen()))
				if err != nil {
					return 0, err
				}
				if !slices.Contains(hops, ofFamily(n.Addresses(), vip)) {
					count++
				}
			}
		}
		return count, nil
	}
	if count, err := withdrawn(); count > 0 || err != nil {
		return nil, errors.Join(fmt.Errorf("the router lacks %d routes through %s", count, mux), err)
	}
	return func(context.Context) (int, error) {
		count, err := withdrawn()
		if count == 0 && err == nil {
			err = fmt.Errorf("the router has all routes through %s", mux)
		}
		return count, err
	}, nil
}

// etherAddress matches the Ethernet address in the output of ip(8) for `link show`.
var etherAddress = regexp.MustCompile(`link/ether (\S+)`)

// movedNeighbours counts the neighbor entries of a node that have the gateway's current Ethernet
// address and had another one before.
func movedNeighbours(node string) (effect, error) {
	device, err := gatewayOf(node)
	if err != nil {
		return nil, err
	}
	read := func() (string, error) {
		out, err := ipOutput("router1", "-o", "link", "show", "dev", device)
		if found := etherAddress.FindStringSubmatch(out); err == nil && found != nil {
			return found[1], nil
		}
		return "", fmt.Errorf("Ethernet address of %s: %q: %v", device, out, err)
	}
	before, err := read()
	if err != nil {
		return nil, err
	}
	return func(context.Context) (int, error) {
		now, err := read()
		if err != nil {
			return 0, err
		}
		out, err := ipOutput(node, "neighbor", "show", "dev", lab.Uplink)
		if err != nil {
			return 0, err
		}
		n := strings.Count(out, now)
		if n == 0 || now == before {
			return 0, fmt.Errorf("the gateway of %s has %s and had %s, its neighbors are %s", node, now, before, out)
		}
		return n, nil
	}, nil
}

// counted matches a counter in the output of nft(8).
var counted = regexp.MustCompile(`counter packets (\d+)`)

// droppedFrames returns the counter of the rule of dropFrames.
func droppedFrames(node string) effect {
	return func(context.Context) (int, error) {
		out, err := nft("list table " + lossTable(node))
		found := counted.FindStringSubmatch(out)
		if err != nil || found == nil {
			return 0, fmt.Errorf("counter of %s: %q: %v", lossTable(node), out, err)
		}
		n, err := strconv.Atoi(found[1])
		if err == nil && n == 0 {
			err = fmt.Errorf("no frame of %s was dropped", node)
		}
		return n, err
	}
}
