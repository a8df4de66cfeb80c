package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/sim"
)

// Methods for packets of connections without a mux flow entry, as the suite's rows name them.
const (
	repairShunt   = "shunt"        // the lab's hosts repair
	repairNone    = "none"         // they do not: repairWindow 0s
	simShunt      = "sim-shunt"    // Shunt's rule over the same connections' addresses
	simNone       = "sim-none"     // the slot's current owner alone
	simPrevious   = "sim-previous" // a daisy chain of one generation
	simBeamer     = "sim-beamer"   // Beamer's, of each bucket
	simModulo     = "sim-modulo"   // the hash modulo the number of backends
	brokenPercent = "broken_pct"
)

var repairSuite = Suite{
	Name:  "repair",
	Title: "Connections that outlive changes of their pool, when no mux remembers them",
	About: "10,000 TCP connections from one client through router, two muxes with `affinity: hash`, five host agents and the kernels of ten " +
		"servers, over which messages are sent and echoed all the time, while the pool changes. `change-1` adds a backend to the ten, `change-2` and " +
		"`change-3` one more each, all within one repair window; `remove-1` takes one of the ten out, whose server goes on running; `doubles` adds one to ten " +
		"whose ring has to become twice as large for it, which moves nearly every slot. (In the others one backend weighs three quarters of the rest: then the ring " +
		"has 2,048 slots throughout.) `broken` are the connections that were reset since they began. Engines: `shunt` is real; `none` is the same " +
		"with `repairWindow: 0s`, real as well. The `sim-` ones are simulated with the addresses and ports of the very connections, with rings as " +
		"plans make them, under a hash key of the simulation's own: `sim-shunt` and `sim-none` say the same of the first two, by which the simulation " +
		"can be judged; `sim-previous` sends what a backend does not know to the owner in the ring before, as a daisy chain of one generation does; `sim-beamer` is " +
		"Beamer (NSDI 2018), whose buckets each have their own former server, on a table of its own that knows no weights; `sim-modulo` is plain hashing.",
	Plotted: []string{brokenPercent}, Unit: "% of the connections broken", Series: engineField,
	Cases: []string{"change-1", "change-2", "change-3", "remove-1", "doubles"},
	Takes: time.Minute, TakesShort: 30 * time.Second,
	Goals: []Goal{
		none("change-1", "broken").of(repairShunt), none("remove-1", "broken").of(repairShunt), none("doubles", "broken").of(repairShunt),
	},
	run: runRepair,
}

const (
	repairConnections = 10_000
	shortConnections  = 200
	// repairHosts and repairVMs are the lab's servers: those of the first pool, and those that are
	// added.
	repairHosts, repairVMs = 5, 3
	repairPool             = 10
	// heavy and light are weights. With one light backend the ring keeps its size.
	heavy, light = 8, 6
	// setPorts is the number of source ports of one set of connections.
	setPorts = 12_000
)

// story is a pool and its changes.
type story struct {
	cases []string // by change
	pools [][]int  // numbers of the backends; the first is before any change
	equal bool     // all have the same weight
}

var stories = []story{
	{cases: []string{"change-1", "change-2", "change-3"}, pools: [][]int{span(0, 10), span(0, 11), span(0, 12), span(0, 13)}},
	{cases: []string{"remove-1"}, pools: [][]int{span(0, 10), append(span(0, 4), span(5, 10)...)}},
	{cases: []string{"doubles"}, pools: [][]int{span(0, 10), span(0, 11)}, equal: true},
}

// span returns the numbers from from to to-1.
func span(from, to int) (out []int) {
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

// told reports whether any of a story's cases was selected.
func (s story) told(o Options) bool {
	for _, c := range s.cases {
		if o.wants(c) {
			return true
		}
	}
	return false
}

func runRepair(ctx context.Context, o Options, emit func(Row)) error {
	topology := lab.DefaultTopology()
	topology.Hosts = lab.Hosts{Count: repairHosts, VMs: repairVMs}
	return withRigOf(ctx, o, topology, func(ctx context.Context, r *rig) error {
		set := 0
		for _, s := range stories {
			if !s.told(o) {
				continue
			}
			var flows []flowTuple
			for _, way := range []string{repairShunt, repairNone} {
				run := &repairRun{rig: r, o: o, story: s, way: way, set: set}
				set++
				broken, err := run.play(ctx)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", s.cases[0], way, err)
				}
				if flows == nil {
					flows = run.flows
				}
				s.emit(o, way, broken, len(run.flows), emit)
			}
			for _, rule := range simRules {
				s.emit(o, rule.engine, sim.Broken(rule.rule, s.simPools(), hashesOf(flows)), len(flows), emit)
			}
		}
		return nil
	})
}

// simRules are the simulated methods.
var simRules = []struct {
	engine string
	rule   sim.Rule
}{{simShunt, sim.LastOwner}, {simNone, sim.PresentOwner}, {simPrevious, sim.PreviousRing}, {simBeamer, sim.Beamer}, {simModulo, sim.Modulo}}

// emit makes the rows of a story under one method.
func (s story) emit(o Options, way string, broken []int, of int, emit func(Row)) {
	for i, c := range s.cases {
		if o.wants(c) {
			emit(Row{Case: c, Fields: []Field{
				{engineField, way}, {"broken", broken[i]}, {brokenPercent, round(100 * float64(broken[i]) / float64(of))}, {"connections", of},
			}})
		}
	}
}

// weight returns a backend's weight.
func (s story) weight(number int) uint32 {
	if number == 0 && !s.equal {
		return light
	}
	return heavy
}

// poolVM returns the host and virtual machine of a backend. Adjacent numbers in the pool are on
// different hosts.
func poolVM(number int) (host, vm int) { return 1 + number%repairHosts, 1 + number/repairHosts }

// poolDIP returns the address of a backend.
func poolDIP(number int) netip.Addr { return lab.VMAddresses(poolVM(number)).V4.Addr() }

// simPools returns the story's pools for the simulation.
func (s story) simPools() (out []sim.Pool) {
	for _, numbers := range s.pools {
		var p sim.Pool
		for _, n := range numbers {
			p = append(p, ring.Member{ID: uint16(n), DIP: poolDIP(n), Port: lab.EchoPort, Weight: uint16(s.weight(n))})
		}
		out = append(out, p)
	}
	return out
}

// flowTuple is the input of a connection's hash.
type flowTuple struct{ client, vip netip.AddrPort }

func hashesOf(flows []flowTuple) (out []uint64) {
	for _, f := range flows {
		out = append(out, ring.FlowHash(ring.KeyOf(ringKey), 0, f.client.Addr(), f.vip.Addr(), protocolTCP, f.client.Port(), f.vip.Port()))
	}
	return out
}

// repairRun is one run of a story in the lab.
type repairRun struct {
	*rig
	o     Options
	story story
	way   string
	set   int // number of this run: it has its own VIP and source ports
	flows []flowTuple
}

// play opens connections, changes the pool repeatedly, and returns how many were broken after each
// change.
func (r *repairRun) play(ctx context.Context) (broken []int, err error) {
	name := fmt.Sprintf("repair-%d", r.set)
	vip, _ := lab.VIPAddresses(20 + r.set)
	if err := r.pool(ctx, name, vip, 0); err != nil {
		return nil, err
	}
	defer func() {
		// Remove the service, to reduce the load on the next run's hosts and muxes.
		err = errors.Join(err, r.remove(context.WithoutCancel(ctx), name))
	}()
	if err := r.waitRoutes(ctx, vip, r.lab.Topology.Muxes); err != nil {
		return nil, err
	}
	count := repairConnections
	if r.o.Short {
		count = shortConnections
	}
	r.o.progressf("repair %s, %s: %d connections", r.story.cases[0], r.way, count)
	first := vipPorts.first + uint16(r.set%4*setPorts)
	lives, err := openLives(ctx, r.dialer(portRange{first, first + setPorts - 1}), netip.AddrPortFrom(vip, lab.EchoPort), count)
	if err != nil {
		return nil, err
	}
	defer lives.close()
	r.flows = lives.flows()
	for i := 1; i < len(r.story.pools); i++ {
		r.o.progressf("repair %s, %s: change %d", r.story.cases[0], r.way, i)
		talk := lives.talk()
		err := r.pool(ctx, name, vip, i)
		n := talk.end()
		if err != nil {
			return nil, err
		}
		broken = append(broken, n)
	}
	return broken, ctx.Err()
}

// pool sets a pool of the story in the service, and returns when every mux and host has it.
func (r *repairRun) pool(ctx context.Context, name string, vip netip.Addr, i int) error {
	endpoint := &apiv1.Endpoint{
		Protocol: "tcp", Port: strconv.Itoa(lab.EchoPort), Affinity: "hash",
		// Only the pool may change, so a slow server must not be marked down.
		Health: &apiv1.Health{Tcp: &apiv1.TCPCheck{}, Interval: durationpb.New(time.Second), Timeout: durationpb.New(time.Second), Rise: 1, Fall: 10},
	}
	if r.way == repairNone {
		endpoint.RepairWindow = durationpb.New(0)
	}
	for _, n := range r.story.pools[i] {
		host, _ := poolVM(n)
		weight := r.story.weight(n)
		endpoint.Backends = append(endpoint.Backends, &apiv1.Backend{
			Dip: []string{poolDIP(n).String()}, Port: lab.EchoPort, Host: lab.HostAddresses(host).V4.Addr().String(), Weight: &weight,
		})
	}
	service := &apiv1.Service{Name: name, Vip: []string{vip.String()}, Endpoints: []*apiv1.Endpoint{endpoint}}
	answer, err := r.manager.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{{Kind: &apiv1.Object_Service{Service: service}}}}))
	if err != nil {
		return err
	}
	return r.waitPool(ctx, name, answer.Msg.GetRevision(), len(endpoint.Backends))
}

// waitPool waits until all nodes have applied a revision and every mux has this many members of the
// service, all alive.
func (r *repairRun) waitPool(ctx context.Context, name string, revision int64, members int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		missing := r.missing(ctx, name, revision, members)
		if missing == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %d members of %s: %w", members, name, missing)
		case <-ticker.C:
		}
	}
}

// missing returns the first condition of waitPool that does not hold.
func (r *repairRun) missing(ctx context.Context, name string, revision int64, members int) error {
	answer, err := r.manager.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
	if err != nil {
		return err
	}
	for _, n := range answer.Msg.GetNodes() {
		if n.GetSyncedRevision() < revision || n.GetError() != "" {
			return fmt.Errorf("%s is at revision %d of %d: %s", n.GetName(), n.GetSyncedRevision(), revision, n.GetError())
		}
		if n.GetRole() != "mux" {
			continue
		}
		all, alive := 0, 0
		for _, m := range n.GetMembers() {
			if m.GetService() == name {
				all++
				if m.GetAlive() && !m.GetUnknown() {
					alive++
				}
			}
		}
		if all != members || alive != members {
			return fmt.Errorf("%s has %d members, %d of them alive", n.GetName(), all, alive)
		}
	}
	return nil
}
