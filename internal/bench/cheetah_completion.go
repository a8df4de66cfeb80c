package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/figure"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/sim/balance"
)

const (
	completionCase = "completion"
	betterField    = "p99_better"
	tookField      = "p99_ms"
	workloadField  = "workload"
	busyField      = "busy"

	// completionVIP is the number of the first scheduler's VIP; the others follow.
	completionVIP = 55
	// completionPorts are the source ports of each scheduler's requests: more than the requests
	// within a minute.
	completionPorts = 5_500
	// completionMean is a request's mean duration at a server without other requests.
	completionMean = 300 * time.Millisecond
	// completionPatience is when a request counts as failed.
	completionPatience = time.Minute
	// completionLooks is the interval at which hosts sample their servers: far shorter than
	// requests.
	completionLooks = 10 * time.Millisecond
	// completionHealth sets health checks that cost little, because no server fails.
	completionHealth, completionHealthEvery = 10, 5 * time.Second
)

// completionEngines are the compared schedulers, hashing first.
var completionEngines = []struct{ name, affinity, scheduler string }{
	{"hash", "hash", "maglev"}, {"round-robin", "cookie", "round-robin"}, {"p2c", "cookie", "p2c"}, {"least-connections", "cookie", "least-connections"},
	{"adaptive", "cookie", "adaptive"},
}

// completionWorkloads are the distributions of the requests' work. completionBusy are the shares of
// time that servers are busy.
var (
	completionWorkloads = []struct {
		name string
		work balance.Work
	}{{"uniform", balance.Uniform(completionMean)}, {"bimodal", balance.Bimodal(completionMean)}, {"skewed", balance.Skewed(completionMean)}}
	completionBusy = []float64{0.7, 0.9}
)

// dueRequests returns the requests of a run. They arrive at random times, at the rate that keeps
// servers busy for the given share of their time.
func dueRequests(r *rand.Rand, work balance.Work, servers int, busy float64, during time.Duration) (out []balance.Due) {
	every := float64(completionMean) / (busy * float64(servers))
	for at := time.Duration(0); ; {
		if at += time.Duration(r.ExpFloat64() * every); at >= during {
			return out
		}
		out = append(out, balance.Due{At: at, Work: work(r)})
	}
}

// completion measures all workloads and loads, one after the other, all schedulers in parallel.
func (r *rig) completion(ctx context.Context, o Options, sizes cheetahSizes, emit func(Row)) error {
	for n := range r.lab.Topology.Hosts.Count {
		if err := r.lab.ReplaceAgent(ctx, fmt.Sprintf("host%d", 1+n), r.lab.Binary, "--load-interval", completionLooks.String()); err != nil {
			return err
		}
	}
	if err := r.completionServices(ctx, sizes); err != nil {
		return err
	}
	for i, w := range completionWorkloads {
		for j, busy := range completionBusy {
			o.progressf("cheetah: requests, %s, servers busy %v", w.name, busy)
			due := dueRequests(rand.New(rand.NewPCG(uint64(i), uint64(j))), w.work, sizes.workers, busy, sizes.requests)
			if err := r.complete(ctx, w.name, busy, due, sizes.workers, sizes.requests/5, emit); err != nil {
				return fmt.Errorf("%s: %s, busy %v: %w", completionCase, w.name, busy, err)
			}
		}
	}
	return ctx.Err()
}

// completionServices makes a service of each scheduler over the same servers, equally many on each
// host.
func (r *rig) completionServices(ctx context.Context, sizes cheetahSizes) error {
	request, want := &apiv1.ApplyRequest{}, map[string]int{}
	for i, e := range completionEngines {
		endpoint := &apiv1.Endpoint{
			Protocol: "tcp", Port: strconv.Itoa(servicePort), Affinity: e.affinity, Scheduler: e.scheduler,
			Health: &apiv1.Health{Http: &apiv1.HTTPCheck{Path: "/healthz"}, Interval: durationpb.New(completionHealthEvery), Timeout: durationpb.New(time.Second), Rise: 1, Fall: completionHealth},
		}
		for n := range sizes.workers {
			host, vm := 1+n%sizes.hosts, 1+n/sizes.hosts
			endpoint.Backends = append(endpoint.Backends, &apiv1.Backend{
				Dip: []string{lab.VMAddresses(host, vm).V4.Addr().String()}, Port: lab.ServerPort, Host: lab.HostAddresses(host).V4.Addr().String(),
			})
		}
		vip, _ := lab.VIPAddresses(completionVIP + i)
		service := &apiv1.Service{Name: "completion-" + e.name, Vip: []string{vip.String()}, Endpoints: []*apiv1.Endpoint{endpoint}}
		request.Objects = append(request.Objects, &apiv1.Object{Kind: &apiv1.Object_Service{Service: service}})
		want[service.Name] = sizes.workers
	}
	answer, err := r.manager.Apply(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	if err := r.waitMembers(ctx, answer.Msg.GetRevision(), want); err != nil {
		return err
	}
	for i, e := range completionEngines {
		vip, _ := lab.VIPAddresses(completionVIP + i)
		if err := r.waitRoutes(ctx, vip, r.lab.Topology.Muxes); err != nil {
			return err
		}
		if e.affinity == "cookie" {
			if err := r.waitKeys(ctx, vip, keysSteady); err != nil {
				return err
			}
		}
	}
	return nil
}

// complete sends the requests to every scheduler's service. It emits the duration of those that
// were due after warm-up, and the bounds of simulation.
func (r *rig) complete(ctx context.Context, workload string, busy float64, due []balance.Due, servers int, warm time.Duration, emit func(Row)) error {
	took := make([][]time.Duration, len(completionEngines))
	errs := make([][]error, len(completionEngines))
	start := time.Now()
	var group sync.WaitGroup
	for i, e := range completionEngines {
		took[i], errs[i] = make([]time.Duration, len(due)), make([]error, len(due))
		vip, _ := lab.VIPAddresses(completionVIP + i)
		// A server never has two schedulers' connections from the same port.
		first := vipPorts.first + uint16(i*completionPorts)
		dial, to := r.dialer(portRange{first, first + completionPorts - 1}), netip.AddrPortFrom(vip, servicePort).String()
		group.Go(func() {
			timer := time.NewTimer(0)
			defer timer.Stop()
			for n, d := range due {
				timer.Reset(time.Until(start.Add(d.At)))
				select {
				case <-timer.C:
				case <-ctx.Done():
					return
				}
				group.Go(func() {
					errs[i][n] = askWork(ctx, dial, to, e.name, d.Work)
					took[i][n] = time.Since(start.Add(d.At))
				})
			}
		})
	}
	group.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var hash float64
	for i, e := range completionEngines {
		var ms []float64
		failed := 0
		for n, d := range due {
			switch {
			case d.At < warm:
			case errs[i][n] != nil:
				failed++
			default:
				ms = append(ms, float64(took[i][n])/float64(time.Millisecond))
			}
		}
		if len(ms) == 0 {
			return fmt.Errorf("%s: no request was answered: %w", e.name, errors.Join(errs[i]...))
		}
		p99 := Percentile(ms, 0.99)
		if i == 0 {
			hash = p99
		}
		emit(completionRow(workload, busy, e.name, len(ms)+failed, failed, Percentile(ms, 0.5), p99, hash))
	}
	emitBounds(workload, busy, due, servers, warm, emit)
	return nil
}

// completionDraws is the number of simulated runs over whose median a random bound is taken.
const completionDraws = 101

// completionBounds are the results of the same requests with a single balancer that sees every
// request begin and end immediately, hashing first.
var completionBounds = []struct {
	name   string
	runs   int
	choose func(*rand.Rand) func(open []int) int
}{
	{"sim-hash", completionDraws, balance.Any}, {"sim-p2c", completionDraws, balance.LesserOfTwo},
	{"sim-least", 1, func(*rand.Rand) func([]int) int { return balance.LeastOpen() }},
}

// emitBounds simulates the requests and emits the bounds.
func emitBounds(workload string, busy float64, due []balance.Due, servers int, warm time.Duration, emit func(Row)) {
	var hash float64
	for i, b := range completionBounds {
		var p50s, p99s []float64
		counted := 0
		for run := range b.runs {
			var ms []float64
			for n, took := range balance.Serve(due, servers, b.choose(rand.New(rand.NewPCG(1, uint64(run))))) {
				if due[n].At >= warm {
					ms = append(ms, float64(took)/float64(time.Millisecond))
				}
			}
			p50s, p99s, counted = append(p50s, Percentile(ms, 0.5)), append(p99s, Percentile(ms, 0.99)), len(ms)
		}
		p50, p99 := Percentile(p50s, 0.5), Percentile(p99s, 0.5)
		if i == 0 {
			hash = p99
		}
		emit(completionRow(workload, busy, b.name, counted, 0, p50, p99, hash))
	}
}

// completionRow returns the result of an engine. hash is the 99th percentile of hashing.
func completionRow(workload string, busy float64, engine string, requests, failed int, p50, p99, hash float64) Row {
	return Row{completionCase, []Field{
		{workloadField, workload}, {busyField, busy}, {engineField, engine}, {"requests", requests}, {"failed", failed}, {"p50_ms", round(p50)}, {tookField, round(p99)}, {betterField, round(hash / p99)},
	}}
}

// askWork makes one request over its own connection, which the server closes.
func askWork(ctx context.Context, dial dialFunc, to, queue string, work time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, completionPatience)
	defer cancel()
	conn, err := dial(ctx, "tcp4", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := fmt.Fprintf(conn, "GET /work?queue=%s&for=%s HTTP/1.1\r\nHost: work\r\n\r\n", queue, work); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// completionPanels returns a diagram of each workload.
func completionPanels(rows []Row) (panels []figure.Panel) {
	for _, w := range completionWorkloads {
		p := figure.Panel{Title: w.name + ": the slowest of a hundred requests", X: "share of their time that servers are busy", Y: "ms (99th percentile)", LogY: true}
		var of []Row
		for _, r := range rows {
			if r.text(workloadField) == w.name {
				of = append(of, r)
			}
		}
		p.Lines = seriesOf(of, tookField, func(r Row) float64 { return r.Get(busyField) })
		for _, busy := range completionBusy {
			p.Ticks = append(p.Ticks, figure.Tick{At: busy, Label: fmt.Sprintf("%.0f %%", 100*busy)})
		}
		panels = append(panels, p)
	}
	return panels
}
