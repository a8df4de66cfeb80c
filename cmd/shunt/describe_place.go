package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// describeStatus is the status that an object is described with: of a service it tells where its VIPs are, and who has
// which of their ports.
func (c *client) describeStatus(ctx context.Context, kind lb.Kind, name string) (*apiv1.StatusResponse, error) {
	request := &apiv1.StatusRequest{}
	if kind == lb.KindService {
		request.Service, request.SnatOf = name, name
	}
	return c.ask(ctx, connect.NewRequest(request))
}

// placements writes where a service's VIPs are, when they are not on every mux.
func (d *description) placements() {
	rows := [][]string{{"VIP", "REPLICAS", "MUXES", "LEAVING", "MISSING"}}
	for _, p := range d.status.GetPlacements() {
		switch {
		case p.GetReplicas() == 0:
		case p.GetEvery():
			rows = append(rows, []string{p.GetVip(), fmt.Sprint(p.GetReplicas()), "every one", "", "not placed yet"})
		default:
			muxes := cmp.Or(strings.Join(p.GetMuxes(), ","), "none")
			rows = append(rows, []string{
				p.GetVip(), fmt.Sprintf("%d of %d", len(p.GetMuxes()), p.GetReplicas()), muxes, strings.Join(p.GetLeaving(), ","), p.GetMissing(),
			})
		}
	}
	d.section("Placement", rows)
}

// place is where a VIP is; nil when that is not known.
func (d *description) place(vip string) *apiv1.VIPPlacement {
	for _, p := range d.status.GetPlacements() {
		if p.GetVip() == vip {
			return p
		}
	}
	return nil
}

// vipsText is how many VIPs a mux serves, and how many it may; empty for a host.
func vipsText(o *lb.Node, n *apiv1.NodeStatus) string {
	switch {
	case o.Role != lb.RoleMux:
		return ""
	case o.Capacity.VIPs == 0:
		return fmt.Sprint(n.GetVips())
	}
	return fmt.Sprintf("%d/%d", n.GetVips(), o.Capacity.VIPs)
}
