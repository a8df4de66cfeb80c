package manager

import (
	"context"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/load"
)

// maxShares is for how many members muxes are asked at most what they give them.
const maxShares = 4096

// askShares asks the muxes what shares of new connections they give members, and notes the mean of what they say in their statuses. Muxes that do not answer have no say; of more than
// maxShares members nothing is known.
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
