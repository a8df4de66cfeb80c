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

// describeStatus returns the status for describing an object. For a service it includes the
// placement of its VIPs and the leases of their ports.
func (c *client) describeStatus(ctx context.Context, kind lb.Kind, name string) (*apiv1.StatusResponse, error) {
	request := &apiv1.StatusRequest{}
	if kind == lb.KindService {
		request.Service, request.SnatOf = name, name
	}
	return c.ask(ctx, connect.NewRequest(request))
}

// placements writes the muxes of a service's VIPs if these are not on every mux.
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

// place returns the placement of a VIP, or nil if it is unknown.
func (d *description) place(vip string) *apiv1.VIPPlacement {
	for _, p := range d.status.GetPlacements() {
		if p.GetVip() == vip {
			return p
		}
	}
	return nil
}

// vipsText returns how many VIPs a mux serves and may serve. It is empty for a host.
func vipsText(o *lb.Node, n *apiv1.NodeStatus) string {
	switch {
	case o.Role != lb.RoleMux:
		return ""
	case o.Capacity.VIPs == 0:
		return fmt.Sprint(n.GetVips())
	}
	return fmt.Sprintf("%d/%d", n.GetVips(), o.Capacity.VIPs)
}
