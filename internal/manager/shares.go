package manager

import (
	"context"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/load"
)

// maxShares is the maximum number of members whose shares are requested from muxes.
const maxShares = 4096

// askShares requests from the muxes the share of new connections that each member receives, and
// writes the mean into the members' statuses. Muxes that do not answer are left out. With more than
// maxShares members no shares are set.
func (m *Manager) askShares(ctx context.Context, members []load.Key, of []*apiv1.LoadStatus) {
	if len(members) == 0 || len(members) > maxShares {
		return
	}
	q := make([]*apiv1.EndpointMember, len(members))
	for i, k := range members {
		q[i] = convert.ToEndpointMember(k.Endpoint, k.Member)
	}
	sums, said := make([]float64, len(of)), make([]int, len(of))
	for _, answer := range askAll(m.reports.muxes(), func(name string) []*apiv1.NodeHealth {
		report, err := m.ask(ctx, name, func(id uint64) *apiv1.PlanUpdate {
			return &apiv1.PlanUpdate{HealthOf: &apiv1.HealthQuestion{Id: id, Members: q, Shares: true}}
		})
		if members := report.GetHealthReply().GetResult().GetMembers(); err == nil && len(members) == len(of) {
			return members
		}
		return nil
	}) {
		for i, h := range answer {
			if h.Share != nil {
				sums[i], said[i] = sums[i]+h.GetShare(), said[i]+1
			}
		}
	}
	for i, n := range said {
		if n > 0 {
			of[i].Share = new(sums[i] / float64(n))
		}
	}
}
