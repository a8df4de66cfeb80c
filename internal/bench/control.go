package bench

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
)

var controlCases = []string{"apply", "apply-new-vip"}

var controlSuite = Suite{
	Name:  "control",
	Title: "From apply to the first answered connection",
	About: "The clock starts when the API call is sent and stops when 16 flows, spread over all muxes by the router, " +
		"have each got their first SYN-ACK from a server. Each flow sends a SYN every millisecond all the time. `apply` " +
		"adds a port to a VIP whose routes are up; `apply-new-vip` adds a VIP, which the router learns by BGP.",
	Plotted: []string{"p50_ms", "p99_ms"}, Unit: "ms",
	Cases: controlCases,
	Takes: 60 * time.Second, TakesShort: 20 * time.Second,
	Goals: []Goal{atMost("apply", "p50_ms", 50), atMost("apply-new-vip", "p50_ms", 300)},
	run:   runControl,
}

// VIP numbers of the control suite: one that stays, and a range of new ones.
const (
	controlVIP    = 20
	firstNewVIP   = 100
	firstNewPort  = 20000
	controlPause  = 50 * time.Millisecond // lets what an iteration caused come to rest
	controlProbes = time.Millisecond
)

func runControl(ctx context.Context, o Options, emit func(Row)) error {
	return withRig(ctx, o, func(ctx context.Context, r *rig) error {
		vip, err := r.serve(ctx, "bench-control", controlVIP, r.backends(3))
		if err != nil {
			return err
		}
		steps := map[string]func(context.Context, int) (float64, error){
			"apply": func(ctx context.Context, i int) (float64, error) {
				port := firstNewPort + i
				return r.timeApply(ctx, "bench-control", vip, port, servicePort, port)
			},
			"apply-new-vip": r.newVIP,
		}
		counts := map[string]int{"apply": 101, "apply-new-vip": 51}
		for _, name := range controlCases {
			if !o.wants(name) {
				continue
			}
			count := counts[name]
			if o.Short {
				count = 2
			}
			var ms []float64
			for i := range count {
				if i%10 == 0 {
					o.progressf("control %s: %d of %d", name, i+1, count)
				}
				took, err := steps[name](ctx, i)
				if err != nil {
					return fmt.Errorf("case %s: %w", name, err)
				}
				ms = append(ms, took)
			}
			emit(Row{Case: name, Fields: []Field{
				{"p50_ms", round(Percentile(ms, 0.5))}, {"p99_ms", round(Percentile(ms, 0.99))}, {"runs", count},
			}})
		}
		return nil
	})
}

// newVIP makes a service on a VIP that no router knows, and takes it away again.
func (r *rig) newVIP(ctx context.Context, i int) (float64, error) {
	const name = "bench-new"
	vip, _ := lab.VIPAddresses(firstNewVIP + i)
	took, err := r.timeApply(ctx, name, vip, servicePort, servicePort)
	if err != nil {
		return took, err
	}
	if err := r.remove(ctx, name); err != nil {
		return took, err
	}
	return took, r.waitRoutes(ctx, vip, 0)
}

// timeApply probes a port that is not served yet, applies the service with the given ports, and returns the ms until
// each lane was answered.
func (r *rig) timeApply(ctx context.Context, name string, vip netip.Addr, probed int, ports ...int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	p, err := r.probe(vip, uint16(probed), controlProbes)
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
