package mux

import (
	"net/netip"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// Planner turns plans into the data plane's wanted state as the agent does, where every member is healthy and every
// path has the plan's MTU: for measurements. It remembers what rings were made of from plan to plan.
type Planner struct {
	rings   rings
	sources sourceLists
}

// NewPlanner returns a planner that remembers nothing yet.
func NewPlanner() *Planner {
	return &Planner{rings{build: BuildRing, made: map[lb.EndpointKey]*madeRings{}}, sourceLists{}}
}

// Apply makes tables obey a plan. They are always the same ones.
func (p *Planner) Apply(to dataplane.MuxTables, of plan.Plan) error {
	p.rings.held = to.Rings
	err := to.Apply(p.State(of))
	p.rings.obeyed(of.Endpoints, err == nil)
	return err
}

// State is the wanted state under a plan. What the tables have by Apply is not in it.
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
