package checker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"

	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/mux"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/loop"
)

// Engines that are a complete mux agent, whose targets are members of endpoints. Probes are due all
// together, or spread over the interval.
const (
	MuxAtOnce = "mux-at-once"
	MuxSpread = "mux-spread"
)

// Members is the number of members of each endpoint. The first targets, all but a Members-th of
// them, are the first members of all endpoints. When they are lost, the last member of each
// endpoint remains.
const Members = 11

// Lost returns how many of a job's targets are lost.
func (j Job) Lost() int { return j.Targets / Members * (Members - 1) }

// Loss is one loss of many members. Times are CLOCK_MONOTONIC, in nanoseconds.
type Loss struct {
	// FailedNS is when the last probe failed that marked a member dead. OutNS is when the tables
	// had marked all of them dead.
	FailedNS int64 `json:"failed_ns"`
	OutNS    int64 `json:"out_ns"`
	// P50NS, P99NS and MaxNS are the delays from a member's last failed probe until the tables
	// marked it dead.
	P50NS int64 `json:"p50_ns"`
	P99NS int64 `json:"p99_ns"`
	MaxNS int64 `json:"max_ns"`
}

// muxChecker is a mux: its agent, its program with tables on the job's device, and the engine that
// probes the members.
type muxChecker struct {
	job    Job
	tables *packets // the mux, and the next hops of the packet prober
	dir    string
	engine *probe.Engine
	agent  *mux.Agent
	watch  *lossWatch
	cancel context.CancelFunc
	runs   sync.WaitGroup
}

func newMux(job Job) (Checker, error) {
	if job.Targets == 0 || job.Targets%Members != 0 || job.Kind != TCP {
		return nil, fmt.Errorf("--targets: %d of kind %s: must be a multiple of %d, of kind %s", job.Targets, job.Kind, Members, TCP)
	}
	c := &muxChecker{job: job, cancel: func() {}, watch: newLossWatch(job)}
	var err error
	if c.tables, err = openPackets(job); err != nil {
		return nil, err
	}
	if c.dir, err = os.MkdirTemp("", "shunt-bench-mux"); err != nil {
		return nil, errors.Join(err, c.tables.close())
	}
	if err := c.open(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// open makes engine and agent.
func (c *muxChecker) open() (err error) {
	random := rand.Float64
	if c.job.Engine == MuxAtOnce {
		// Probes that began together stay together.
		random = func() float64 { return 0.5 }
	}
	c.engine, err = probe.New(probe.Options{
		Clock: clock.System{}, Random: random, Report: func(r []probe.Result) { c.agent.Probed(r) },
		Means: []probe.Means{{Name: "packet", Packets: true, New: c.packets}, {Name: "loop", New: c.loop}},
	})
	if err != nil {
		return err
	}
	c.watch.MuxTables = c.tables.mux
	hops := netdev.NewNextHops()
	c.agent, err = mux.New(mux.Options{
		Tables: c.watch, Ring: mux.BuildRing, Prober: c.engine, Hops: hops, Speaker: &bgp.Fake{}, Clock: clock.System{}, RunDir: c.dir,
		Ensure: func(context.Context) (bool, error) { return false, nil }, Addresses: c.tables.device.Addresses,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	c.runs.Go(func() {
		if err := hops.Run(ctx, c.agent.HopsChanged); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "follow next hops:", err)
		}
	})
	c.runs.Go(func() { c.agent.Run(ctx) })
	return nil
}

// packets makes the packet prober, watched.
func (c *muxChecker) packets(answered func([]probe.Answer)) (probe.Asker, error) {
	probes, err := c.tables.mux.Probes()
	if err != nil {
		return nil, err
	}
	a, err := c.tables.askerOn(&watchedProbes{probes, c.watch}, func(answers []probe.Answer) {
		for _, a := range answers {
			if a.Silent {
				c.watch.silent(a.ID, a.Took)
			}
		}
		answered(answers)
	})
	return &watchedAsker{a, c.watch}, err
}

// loop makes the socket prober for some unresponsive servers, watched.
func (c *muxChecker) loop(answered func([]probe.Answer)) (probe.Asker, error) {
	a, err := loop.New(loop.Options{}, func(answers []probe.Answer) {
		now := monotonic()
		for _, a := range answers {
			if a.Verdict == probe.Bad {
				c.watch.failed(a.ID, now)
			}
		}
		answered(answers)
	})
	return &watchedAsker{a, c.watch}, err
}

// plan returns a plan of endpoints of Members members, which are the job's targets.
func (c *muxChecker) plan() plan.Plan {
	p := plan.Plan{
		Revision: 1, MTU: 1500, Node: lb.Node{Name: "mux1", Role: lb.RoleMux, Addresses: c.tables.device.Addresses},
		TunnelSources: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}, RingKeys: []plan.Key{{ID: 2, Key: [16]byte{1}}},
	}
	check := lb.Check{Kind: lb.CheckTCP, Interval: c.job.Interval, Timeout: c.job.Timeout, Rise: 1, Fall: 2, Engine: lb.EnginePacket}
	check.SetDefaults()
	check.Jitter = 0
	n := c.job.Targets / Members
	for i := range n {
		e := plan.Endpoint{
			Key: c.watch.key(i), Service: fmt.Sprintf("web%05d", i), Generation: 1, RingCode: 10, KeyID: 2, Encap: lb.EncapIPIP,
			Health: lb.Health{Checks: []lb.Check{check}, From: lb.FromMux},
		}
		for j := range Members {
			at := c.job.Target(j*n + i)
			e.Members = append(e.Members, plan.Member{ID: uint16(j), DIP: at.Addr(), Port: at.Port(), Weight: 1, Outer: at.Addr()})
		}
		p.Endpoints = append(p.Endpoints, e)
		p.Services = append(p.Services, plan.Service{Name: e.Service, VIPs: []netip.Addr{e.Key.VIP}})
	}
	return p
}

// Prepare implements Checker. It returns when all members are alive.
func (c *muxChecker) Prepare(ctx context.Context) error {
	if err := c.agent.Apply(ctx, c.plan()); err != nil {
		return err
	}
	if err := c.tables.wait(ctx); err != nil {
		return err
	}
	return c.watch.wait(ctx, 0)
}

// Once implements Checker. It waits until the lost members are dead, returns the delays, and checks
// that packets go only to the remaining members.
func (c *muxChecker) Once(ctx context.Context) (Tally, error) {
	if err := c.watch.wait(ctx, c.job.Lost()); err != nil {
		return Tally{}, err
	}
	round := c.watch.round()
	return Tally{Good: uint64(c.job.Targets - c.job.Lost()), Bad: uint64(c.job.Lost()), Loss: &round}, c.look()
}

// looked is about how many endpoints are checked, each with several times as many packets as it has
// members.
const looked = 200

func (c *muxChecker) look() error {
	n := c.job.Targets / Members
	for i := 0; i < n; i += max(n/looked, 1) {
		key, left := c.watch.key(i), c.job.Target((Members-1)*n+i).Addr()
		for port := range uint16(4 * Members) {
			client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), 1024+port)
			to, err := benchrun.Forwarded(c.tables.mux, c.tables.device.MAC, client, netip.AddrPortFrom(key.VIP, key.Port))
			if err != nil {
				return err
			}
			if to != left {
				return fmt.Errorf("a packet from %s to %s leaves for %s: want %s, which alone is left", client, key.VIP, to, left)
			}
		}
	}
	return nil
}

// Steady implements Checker. It waits until all members are alive.
func (c *muxChecker) Steady(ctx context.Context) error { return c.watch.wait(ctx, 0) }

// Report implements Checker.
func (c *muxChecker) Report() Tally {
	dead := uint64(c.watch.dead())
	return Tally{Good: uint64(c.job.Targets) - dead, Bad: dead}
}

// Tables implements Checker.
func (c *muxChecker) Tables() (uint64, error) { return c.tables.tables() }

// Close implements Checker.
func (c *muxChecker) Close() error {
	c.cancel()
	c.runs.Wait()
	if c.engine != nil {
		c.engine.Close()
	}
	return errors.Join(c.tables.close(), os.RemoveAll(c.dir))
}
