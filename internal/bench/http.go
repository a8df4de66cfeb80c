package bench

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
)

var httpCases = []string{"keepalive", "connect"}

var httpSuite = Suite{
	Name:  "http",
	Title: "HTTP through the laboratory",
	About: "One client with 8 connections asks one server, through the VIP (router, mux, host agent, direct return) " +
		"and, in turns with that, at its own address. Everything shares the CPUs of one machine, so the difference is " +
		"what the whole way through Shunt costs. `keepalive` keeps its connections, `connect` opens one per request.",
	Plotted: []string{"rps", "direct_rps"}, Unit: "requests per second",
	Cases: httpCases,
	Takes: 75 * time.Second, TakesShort: 20 * time.Second,
	run: runHTTP,
}

const httpConnections = 8

// Source ports of the two paths, within the range of a lab's client.
var (
	vipPorts    = portRange{10000, 37499}
	directPorts = portRange{37500, 65000}
)

// httpSamples holds the figures of one path, one value per repetition.
type httpSamples struct{ rps, p50, p99 []float64 }

func (s *httpSamples) add(r loadResult) {
	s.rps = append(s.rps, r.RPS)
	s.p50 = append(s.p50, Percentile(r.Latency, 0.50))
	s.p99 = append(s.p99, Percentile(r.Latency, 0.99))
}

// fields returns the medians over the repetitions.
func (s *httpSamples) fields(prefix string) []Field {
	return []Field{
		{prefix + "rps", round(Median(s.rps))},
		{prefix + "p50_ms", round(Median(s.p50))},
		{prefix + "p99_ms", round(Median(s.p99))},
	}
}

func runHTTP(ctx context.Context, o Options, emit func(Row)) error {
	return withRig(ctx, o, func(ctx context.Context, r *rig) error {
		vip, err := r.serve(ctx, "bench-http", 10, r.backends(1))
		if err != nil {
			return err
		}
		through := net.JoinHostPort(vip.String(), strconv.Itoa(servicePort))
		direct := net.JoinHostPort(lab.VMAddresses(1, 1).V4.Addr().String(), strconv.Itoa(lab.ServerPort))
		for _, name := range httpCases {
			if !o.wants(name) {
				continue
			}
			row, err := r.httpCase(ctx, o, name, through, direct)
			if err != nil {
				return err
			}
			emit(row)
		}
		return nil
	})
}

// httpCase measures both paths in turns.
func (r *rig) httpCase(ctx context.Context, o Options, name, through, direct string) (Row, error) {
	rounds, duration := 11, 1500*time.Millisecond
	if o.Short {
		rounds, duration = 1, 300*time.Millisecond
	}
	var vip, dip httpSamples
	failures := 0
	for i := range rounds {
		o.progressf("http %s: repetition %d of %d", name, i+1, rounds)
		for turn := range 2 {
			l := load{dial: r.dialer(vipPorts), connections: httpConnections, duration: duration, reconnect: name == "connect"}
			l.address = through
			samples := &vip
			if (i+turn)%2 == 1 {
				l.dial, l.address, samples = r.dialer(directPorts), direct, &dip
			}
			result, err := l.run(ctx)
			if err != nil {
				return Row{}, err
			}
			samples.add(result)
			failures += result.Failures
			if result.Failures > 0 {
				o.progressf("http %s: %d requests to %s failed: %v", name, result.Failures, l.address, result.Failure)
			}
		}
	}
	fields := append(vip.fields(""), dip.fields("direct_")...)
	return Row{Case: name, Fields: append(fields, Field{"failures", failures}, Field{"runs", rounds})}, ctx.Err()
}
