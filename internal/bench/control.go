package bench

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
)

var controlCases = []string{"apply", "apply-new-vip", "apply-busy", "flips-2000", "flips-20000"}

var controlSuite = Suite{
	Name:  "control",
	Title: "From apply, and from hosts' verdicts, to the data plane of all muxes",
	About: "Three managers and two muxes. `apply`: the clock starts when the API call is sent and stops when four flows, two of which " +
		"the router sends through each mux, have got their first SYN-ACK from a server; each flow sends a SYN every 10 ms before the " +
		"call is answered, and every millisecond after that. `apply` adds a port to a VIP whose routes are up; `apply-new-vip` adds a " +
		"VIP, which the router learns by BGP, and probes with 16 flows, which it spreads as it likes; " +
		"`apply-busy` is `apply` while another client changes other services, `changes_ps` times a second, 100 of which are asked " +
		"for. `floor_ms` is the mean time of a transaction of the store in the same run: three members of etcd, here on one disk. " +
		"`flips-N`: N backends with `from: host` on ten hosts, which are the real agent with checks that the measurement decides; " +
		"all flip at once. The clock starts before the first host hears of its flips and stops when the words by which the " +
		"program of each mux chooses say so of all N, looked at every millisecond.",
	Plotted: []string{"p50_ms", "p99_ms"}, Unit: "ms",
	Cases: controlCases,
	Takes: 4 * time.Minute, TakesShort: time.Minute,
	Goals: []Goal{
		atMost("apply", "p50_ms", 50), atMost("apply-new-vip", "p50_ms", 300), atMost("apply-busy", "p50_ms", 10),
		atMost("apply-busy", "p99_ms", 50), atMost("flips-2000", "p50_ms", 50), atMost("flips-20000", "p50_ms", 200),
	},
	run: runControl,
}

// VIP numbers of the control suite: a permanent one, and the first of ranges.
const (
	controlVIP    = 20
	busyVIP       = 21
	firstFlipVIP  = 160
	firstNewVIP   = 100
	firstNewPort  = 20000
	firstBusyPort = 30000
	controlPause  = 50 * time.Millisecond // lets the effects of an iteration settle
	controlProbes = time.Millisecond
)

// controlManagers is the number of managers.
const controlManagers = 3

func runControl(ctx context.Context, o Options, emit func(Row)) error {
	topology := lab.DefaultTopology()
	topology.Managers = controlManagers
	return withRigOf(ctx, o, topology, func(ctx context.Context, r *rig) error {
		vip, err := r.serve(ctx, "bench-control", controlVIP, r.backends(3))
		if err != nil {
			return err
		}
		newPort := func(first int) func(context.Context, int) (float64, error) {
			return func(ctx context.Context, i int) (float64, error) {
				return r.timeApply(ctx, r.probeEachMux, "bench-control", vip, first+i, servicePort, first+i)
			}
		}
		for _, c := range []struct {
			name  string
			count int
			step  func(context.Context, int) (float64, error)
		}{
			{"apply", 101, newPort(firstNewPort)}, {"apply-new-vip", 51, r.newVIP}, {"apply-busy", 101, newPort(firstBusyPort)},
		} {
			if !o.wants(c.name) {
				continue
			}
			if o.Short {
				c.count = 2
			}
			repeat := func(ctx context.Context) (Row, error) { return r.repeat(ctx, o, c.name, c.count, c.step) }
			measure := repeat
			if c.name == "apply-busy" {
				measure = func(ctx context.Context) (Row, error) { return r.whileBusy(ctx, repeat) }
			}
			row, err := measure(ctx)
			if err != nil {
				return fmt.Errorf("case %s: %w", c.name, err)
			}
			emit(row)
		}
		return r.runFlips(ctx, o, emit)
	})
}

// repeat measures a step, with the store's share of it.
func (r *rig) repeat(ctx context.Context, o Options, name string, count int, step func(context.Context, int) (float64, error)) (Row, error) {
	before, err := r.transactions(ctx)
	if err != nil {
		return Row{}, err
	}
	var ms []float64
	for i := range count {
		if i%10 == 0 {
			o.progressf("control %s: %d of %d", name, i+1, count)
		}
		took, err := step(ctx, i)
		if err != nil {
			return Row{}, err
		}
		ms = append(ms, took)
	}
	after, err := r.transactions(ctx)
	if err != nil {
		return Row{}, err
	}
	return Row{Case: name, Fields: []Field{
		{"p50_ms", round(Percentile(ms, 0.5))}, {"p99_ms", round(Percentile(ms, 0.99))},
		{"floor_ms", round(after.mean(before))}, {"runs", count},
	}}, nil
}

// newVIP adds a service on a VIP without a route, and removes it.
func (r *rig) newVIP(ctx context.Context, i int) (float64, error) {
	const name = "bench-new"
	vip, _ := lab.VIPAddresses(firstNewVIP + i)
	took, err := r.timeApply(ctx, r.probe, name, vip, servicePort, servicePort)
	if err != nil {
		return took, err
	}
	if err := r.remove(ctx, name); err != nil {
		return took, err
	}
	return took, r.waitRoutes(ctx, vip, 0)
}

// timeApply probes a port that is not served yet, applies the service with the given ports, and
// returns the ms until each lane got a reply.
func (r *rig) timeApply(ctx context.Context, probe func(netip.Addr, uint16, time.Duration) (*prober, error), name string, vip netip.Addr, probed int, ports ...int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	p, err := probe(vip, uint16(probed), controlProbes)
	if err != nil {
		return 0, err
	}
	defer p.close()
	if err := pause(ctx, controlPause); err != nil {
		return 0, err
	}
	if p.answered() {
		return 0, fmt.Errorf("%s port %d: answered before it was applied", vip, probed)
	}
	object := service(name, vip, r.backends(3), ports...)
	start := time.Now()
	if err := r.apply(ctx, object); err != nil {
		return 0, err
	}
	p.hurry()
	at, err := p.waitAll(ctx)
	if err != nil {
		return 0, err
	}
	return float64(at.Sub(start)) / float64(time.Millisecond), nil
}

// pause waits, unless the context ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
