package mux

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// Planner converts plans to the data plane's wanted state as the agent does, with all members
// healthy and the plan's MTU on every path. It is for measurements. It caches the inputs of rings
// from plan to plan.
type Planner struct {
	rings   rings
	sources sourceLists
}

// NewPlanner returns a planner with an empty cache.
func NewPlanner() *Planner {
	return &Planner{rings{build: BuildRing, made: map[lb.EndpointKey]*madeRings{}}, sourceLists{}}
}

// Apply applies a plan to tables, which must be the same in each call.
func (p *Planner) Apply(to dataplane.MuxTables, of plan.Plan) error {
	p.rings.held = to.Rings
	err := to.Apply(p.State(of))
	p.rings.obeyed(of.Endpoints, err == nil)
	return err
}

// State returns the wanted state under a plan. Rings that the tables have from a previous Apply are
// not in it.
func (p *Planner) State(of plan.Plan) dataplane.MuxState {
	p.rings.prepare(of.Endpoints)
	return wantedTables(of, present{
		rings: &p.rings, sources: p.sources,
		bit:      func(lb.EndpointKey, plan.Member) bool { return true },
		decision: func(lb.EndpointKey) health.Decision { return health.Decision{} },
		mtu:      func(netip.Addr) uint32 { return of.MTU },
		cids:     of.CIDs,
		cookies:  of.Cookies,
	})
}
