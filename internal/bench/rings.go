package bench

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/mux"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

var ringsCases = []string{"dead", "down", "up", "down-half", "up-half", "build", "exact-13313", "pool-2", "pool-10", "pool-100", "pool-1000", "pool-10000", "pool-65535"}

var ringsSuite = Suite{
	Name:  "rings",
	Title: "Bulk changes, and what rings are like",
	About: "20,000 backends: 1,000 VIPs with 2 ports and 10 backends each, rings of 1,024 slots, two workers. `dead`: the alive " +
		"bits of all of them are cleared in the real tables, after which no packet goes to them. `down`: a plan in memory " +
		"says that one of the ten backends of every endpoint is down for good; all 2,000 rings are patched and the tables " +
		"follow; the clock stops at the last word that is stored. `up`: a plan that takes all of it back. `down-half`, " +
		"`up-half`: five of ten instead of one. `build`: all rings and tables from nothing. `exact-13313`: 2,000 rings of " +
		"13,313 slots by the paper, for comparison, made and not published. In the first repetition the tables' answer for a " +
		"flow of every endpoint is compared with a ring that is made from nothing.\n\n" +
		"The rows `pool-N` say what rings of N backends of equal weight are like: `busiest` is the load of the busiest backend " +
		"over the mean, in percent more, with all alive; `busiest_down` the same with every tenth backend dead, whose slots " +
		"went along the fallback chain; `needless_exact` the percentage of slots that a rebuilt ring moves though their " +
		"backend is alive, when those are taken out of it; `needless_chain` that of the chain.",
	Plotted: []string{"ms"}, Unit: "ms",
	Cases: ringsCases,
	Takes: 20 * time.Second, TakesShort: 10 * time.Second,
	Unplotted: []string{"pool-2", "pool-10", "pool-100", "pool-1000", "pool-10000", "pool-65535"},
	Goals:     []Goal{atMost("dead", "ms", 1), atMost("down", "ms", 15), atMost("up", "ms", 15), atMost("exact-13313", "ms", 100)},
	run:       runRings,
}

// The fleet of the bulk changes.
const (
	fleetVIPs    = 1000
	fleetPorts   = 2
	fleetMembers = 10
	ringsRounds  = 15
)

// fleet returns a plan of a mux. Members for which down returns true are marked down.
func fleet(vips, ports, members int, down func(endpoint, member int) bool) plan.Plan {
	p := plan.Plan{
		MTU: 1500, RingKeys: []plan.Key{{ID: 0, Key: ringKey}},
		TunnelSources: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")},
	}
	weights := slices.Repeat([]uint16{1}, members)
	code := ring.SizeCode(weights, 0)
	for e := range vips * ports {
		endpoint := plan.Endpoint{
			Members:  make([]plan.Member, 0, members),
			Key:      lb.EndpointKey{VIP: benchrun.IPv4.VIP(uint32(e / ports)), Protocol: lb.TCP, Port: uint16(benchrun.Port + e%ports)},
			RingCode: code, Affinity: lb.AffinityFlow, Encap: lb.EncapIPIP, Idle: lb.Idle{Untrusted: benchIdle, Trusted: benchIdle},
		}
		for m := range members {
			dip := fleetDIP(e*members + m)
			endpoint.Members = append(endpoint.Members, plan.Member{
				ID: uint16(m), DIP: dip, Port: 8080, Weight: 1, Outer: dip, Down: down != nil && down(e, m),
			})
		}
		p.Endpoints = append(p.Endpoints, endpoint)
	}
	return p
}

// fleetDIP returns the address of backend i in 10.0.0.0/8. There are 16 Mi of them.
func fleetDIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

func runRings(ctx context.Context, o Options, emit func(Row)) error {
	bulk := []string{"dead", "down", "up", "down-half", "up-half", "build"}
	if slices.ContainsFunc(bulk, o.wants) {
		if err := runBulk(ctx, o, emit); err != nil {
			return err
		}
	}
	if o.wants("exact-13313") {
		emit(timeRow("exact-13313", timeExact(o)))
	}
	for _, n := range []int{2, 10, 100, 1000, 10000, 65535} {
		name := fmt.Sprintf("pool-%d", n)
		if err := ctx.Err(); err != nil {
			return err
		}
		if o.wants(name) && !(o.Short && n > 1000) {
			o.progressf("rings %s", name)
			emit(poolRow(name, n))
		}
	}
	return nil
}

// timeRow summarizes times.
func timeRow(name string, ms []float64) Row {
	return Row{Case: name, Fields: []Field{{"ms", round(Median(ms))}, {"min_ms", round(slices.Min(ms))}, {"runs", len(ms)}}}
}

// rounds returns how often a bulk change is measured.
func (o Options) rounds(full int) int {
	if o.Short {
		return 1
	}
	return full
}

// runBulk times changes of the fleet.
func runBulk(ctx context.Context, o Options, emit func(Row)) error {
	whole := fleet(fleetVIPs, fleetPorts, fleetMembers, nil)
	plans := map[string]plan.Plan{
		"down": fleet(fleetVIPs, fleetPorts, fleetMembers, func(e, m int) bool { return m == e%fleetMembers }), "up": whole,
		"down-half": fleet(fleetVIPs, fleetPorts, fleetMembers, func(e, m int) bool { return (m+e)%2 == 0 }), "up-half": whole,
	}
	ms := map[string][]float64{}
	for i := range o.rounds(ringsRounds) {
		if err := ctx.Err(); err != nil {
			return err
		}
		o.progressf("rings: repetition %d", i+1)
		if err := bulkRound(whole, plans, ms, i == 0); err != nil {
			return err
		}
	}
	for _, name := range ringsCases {
		if len(ms[name]) > 0 && o.wants(name) {
			emit(timeRow(name, ms[name]))
		}
	}
	return nil
}

// bulkRound begins with empty tables and makes all changes once.
func bulkRound(whole plan.Plan, plans map[string]plan.Plan, ms map[string][]float64, verify bool) error {
	m, err := benchrun.OpenMux(dataplane.MuxLimits{Flows: 64 * ki})
	if err != nil {
		return err
	}
	defer m.Close()
	planner := mux.NewPlanner()
	apply := func(name string, p plan.Plan) error {
		start := time.Now()
		if err := planner.Apply(m, p); err != nil {
			return fmt.Errorf("case %s: %w", name, err)
		}
		ms[name] = append(ms[name], float64(m.Published().Sub(start))/1e6)
		if verify {
			return verifyRings(name, m, mux.NewPlanner().State(p))
		}
		return nil
	}
	if err := apply("build", whole); err != nil {
		return err
	}
	for _, name := range []string{"down", "up", "down-half", "up-half"} {
		if err := apply(name, plans[name]); err != nil {
			return err
		}
	}
	flips := make([]dataplane.MemberAlive, 0, len(whole.Endpoints)*fleetMembers)
	for _, e := range whole.Endpoints {
		for _, member := range e.Members {
			flips = append(flips, dataplane.MemberAlive{Endpoint: e.Key, Member: member.ID})
		}
	}
	start := time.Now()
	m.SetAlive(flips)
	ms["dead"] = append(ms["dead"], float64(time.Since(start))/1e6)
	for _, f := range flips {
		if alive, known := m.Alive(f.Endpoint, f.Member); alive || !known {
			return fmt.Errorf("case dead: %v member %d: alive %v, known %v: want dead", f.Endpoint, f.Member, alive, known)
		}
	}
	return nil
}

// verifyRings checks the tables' choice for a flow of every endpoint against the rings of a state.
func verifyRings(name string, m *benchrun.Mux, state dataplane.MuxState) error {
	for i, e := range state.Endpoints {
		client := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		packet := dataplane.Packet{Client: client, VIP: e.Key.VIP, Protocol: lb.TCP, ClientPort: uint16(1024 + i), Port: e.Key.Port}
		got, err := m.Trace(packet)
		if err != nil {
			return err
		}
		hash := ring.FlowHash(ring.KeyOf(ringKey), 0, client, e.Key.VIP, uint8(lb.TCP), packet.ClientPort, packet.Port)
		if want := e.Ring[ring.Slot(hash, e.RingCode)]; got.Member != want {
			return fmt.Errorf("case %s: %v: member %d gets %v, its ring says %d", name, e.Key, got.Member, packet, want)
		}
	}
	return nil
}

// timeExact times the construction of 2,000 exact rings with two workers.
func timeExact(o Options) (ms []float64) {
	const prime, workers = 13313, 2
	var sets [fleetVIPs * fleetPorts][]ring.Member
	for s := range sets {
		for i := range fleetMembers {
			sets[s] = append(sets[s], ring.Member{ID: uint16(i), DIP: fleetDIP(s*fleetMembers + i), Port: 8080, Weight: 1})
		}
	}
	for i := range o.rounds(ringsRounds) {
		o.progressf("rings exact-13313: repetition %d", i+1)
		start := time.Now()
		var next atomic.Int64
		var all sync.WaitGroup
		for range workers {
			all.Go(func() {
				var b ring.Builder
				for s := next.Add(1) - 1; int(s) < len(sets); s = next.Add(1) - 1 {
					b.BuildExact(prime, sets[s])
				}
			})
		}
		all.Wait()
		ms = append(ms, float64(time.Since(start))/1e6)
	}
	return ms
}
