package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/bench/swarm"
)

var nodesCases = []string{"sync-first", "restart", "idle", "busy", "change", "stuck"}

var nodesSuite = Suite{
	Name:  "nodes",
	Title: "Many nodes on one manager",
	About: "5,000 hosts, the real agent with a data plane that only counts, in one process, and one manager with its store " +
		"on disk in another, on the same CPUs; each host has a service of its own. `sync-first` is the " +
		"time until all have their plans from nothing, `restart` from the manager's kill -9, with its start at once, until all " +
		"obey it again; `bytes` is the most memory that the manager had, `attempts_peak` the most connections that all nodes " +
		"tried in one second. `idle` is what both processes take of a CPU while nothing happens, `busy` while counters of " +
		"every host change all the time, so that each reports once a second. `change` is from the call that changes one service " +
		"until its host has it; that no other host heard anything is checked. `stuck` is the same while 1 % of the hosts read " +
		"nothing and have much to read. `manager_cpu_s` and `swarm_cpu_s` are what a case cost, in seconds of CPU time.",
	Plotted: []string{"ms", "p50_ms", "p99_ms"}, Unit: "ms",
	Cases: nodesCases,
	Takes: 3 * time.Minute, TakesShort: 30 * time.Second,
	Goals: []Goal{atMost("restart", "ms", 10_000), atMost("restart", "bytes", 2<<30)},
	run:   runNodes,
}

const (
	nodesCount, nodesShort       = 5000, 200
	changesCount, changesShort   = 301, 20
	stuckShare                   = 100 // one in this many does not read
	stuckEndpoints, stuckChanges = 100, 6
	// steadyFor is how long idle and busy nodes are measured. steadyPause lets earlier work settle.
	steadyFor, steadyShort, steadyPause = 20 * time.Second, time.Second, 3 * time.Second
	// firstChange is the port of the servers of the first change. Each change has its own.
	firstChange = 10000
)

func runNodes(ctx context.Context, o Options, emit func(Row)) error {
	count, changes := nodesCount, changesCount
	if o.Short {
		count, changes = nodesShort, changesShort
	}
	return withNodes(ctx, o, count, func(ctx context.Context, r *nodesRig) error {
		o.progressf("nodes sync-first: %d nodes", count)
		row, err := r.syncFirst(ctx)
		if err != nil {
			return fmt.Errorf("case sync-first: %w", err)
		}
		if o.wants(row.Case) {
			emit(row)
		}
		if o.wants("restart") {
			o.progressf("nodes restart")
			if row, err = r.restart(ctx); err != nil {
				return fmt.Errorf("case restart: %w", err)
			}
			emit(row)
		}
		for _, name := range []string{"idle", "busy"} {
			if !o.wants(name) {
				continue
			}
			o.progressf("nodes %s", name)
			if row, err = r.steady(ctx, name, o.Short); err != nil {
				return fmt.Errorf("case %s: %w", name, err)
			}
			emit(row)
		}
		for i, name := range []string{"change", "stuck"} {
			if !o.wants(name) {
				continue
			}
			o.progressf("nodes %s", name)
			reading := count
			if name == "stuck" {
				reading = count - count/stuckShare
				if err := r.freeze(ctx, count/stuckShare); err != nil {
					return fmt.Errorf("case %s: %w", name, err)
				}
			}
			if row, err = r.change(ctx, name, reading, changes, firstChange*(i+1)); err != nil {
				return fmt.Errorf("case %s: %w", name, err)
			}
			emit(row)
		}
		return nil
	})
}

func (r *nodesRig) syncFirst(ctx context.Context) (Row, error) {
	epoch, err := r.epoch(ctx)
	if err != nil {
		return Row{}, err
	}
	before, err := r.cpu()
	if err != nil {
		return Row{}, err
	}
	began := time.Now()
	if _, err := r.order(swarm.Order{Start: r.count, Manager: r.address, Dir: r.state}); err != nil {
		return Row{}, err
	}
	return r.synced("sync-first", began, epoch, before)
}

// synced waits for all nodes.
func (r *nodesRig) synced(name string, began time.Time, epoch int64, before cpuSeconds) (Row, error) {
	a, err := r.order(swarm.Order{Synced: epoch})
	if err != nil {
		return Row{}, err
	}
	spent, err := r.cpuSince(before)
	if err != nil {
		return Row{}, err
	}
	peak, err := r.peakRSS()
	return Row{Case: name, Fields: append([]Field{
		{"ms", sinceMS(began, a.At)}, {"bytes", peak}, {"nodes", r.count}, {"attempts_peak", a.Peak},
	}, spent.fields()...)}, err
}

// steady measures nodes while no plan changes.
func (r *nodesRig) steady(ctx context.Context, name string, short bool) (Row, error) {
	if _, err := r.order(swarm.Order{Counters: name == "busy", Steady: true}); err != nil {
		return Row{}, err
	}
	if err := pause(ctx, steadyPause); err != nil {
		return Row{}, err
	}
	before, err := r.cpu()
	if err != nil {
		return Row{}, err
	}
	began := time.Now()
	watch := steadyFor
	if short {
		watch = steadyShort
	}
	if err := pause(ctx, watch); err != nil {
		return Row{}, err
	}
	spent, err := r.cpuSince(before)
	took := time.Since(began).Seconds()
	return Row{Case: name, Fields: append([]Field{
		{"manager_cpu_pct", round(100 * spent.manager / took)}, {"swarm_cpu_pct", round(100 * spent.swarm / took)}, {"nodes", r.count},
	}, spent.fields()...)}, err
}

func sinceMS(began, at time.Time) float64 {
	return round(float64(at.Sub(began)) / float64(time.Millisecond))
}

func (r *nodesRig) restart(ctx context.Context) (Row, error) {
	epoch, err := r.epoch(ctx)
	if err != nil {
		return Row{}, err
	}
	before, err := r.cpu()
	if err != nil {
		return Row{}, err
	}
	before.manager = 0 // the new process has used nothing yet
	began := time.Now()
	r.kill()
	if err := r.startManager(ctx); err != nil {
		return Row{}, err
	}
	return r.synced("restart", began, epoch+1, before)
}

// freeze makes the last nodes stop reading, and sends them more than a stream's buffers hold.
func (r *nodesRig) freeze(ctx context.Context, count int) error {
	if _, err := r.order(swarm.Order{Freeze: count}); err != nil {
		return err
	}
	for i := range stuckChanges {
		for first := r.count - count; first < r.count; first += 10 {
			var objects []*apiv1.Object
			for n := first; n < min(first+10, r.count); n++ {
				objects = append(objects, serviceOf(n, 9000+i, stuckEndpoints))
			}
			if err := r.apply(ctx, objects...); err != nil {
				return err
			}
		}
	}
	return nil
}

// change changes the services of hosts among the first reading ones, one after another.
func (r *nodesRig) change(ctx context.Context, name string, reading, changes, port int) (Row, error) {
	if _, err := r.order(swarm.Order{Updated: true}); err != nil {
		return Row{}, err
	}
	var ms []float64
	for i := range changes {
		n := i * 7919 % reading
		took, err := r.changeOne(ctx, n, port+i)
		if err != nil {
			return Row{}, err
		}
		ms = append(ms, took)
	}
	return Row{Case: name, Fields: []Field{
		{"p50_ms", round(Percentile(ms, 0.5))}, {"p99_ms", round(Percentile(ms, 0.99))}, {"nodes", r.count}, {"runs", changes},
	}}, nil
}

func (r *nodesRig) changeOne(ctx context.Context, n, port int) (float64, error) {
	if _, err := r.order(swarm.Order{Arm: true, Node: n}); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := r.apply(ctx, serviceOf(n, port, 1)); err != nil {
		return 0, err
	}
	a, err := r.order(swarm.Order{Await: true})
	if err != nil {
		return 0, err
	}
	heard, err := r.order(swarm.Order{Updated: true})
	if err == nil && !slices.Equal(heard.Updated, []int{n}) {
		err = fmt.Errorf("a change of node %d alone was told to %s", n, someOf(heard.Updated))
	}
	return sinceMS(began, a.At), err
}

// someOf formats a list of nodes: their number, and the first few.
func someOf(nodes []int) string {
	const few = 5
	switch n := len(nodes); {
	case n == 0:
		return "none"
	case n <= few:
		return fmt.Sprintf("%d: %v", n, nodes)
	default:
		return fmt.Sprintf("%d, the first of them %v", n, nodes[:few])
	}
}
