package bench

import (
	"context"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/figure"
	"github.com/shuntlb/shunt/internal/lab"
)

// Engines of the suite, as its rows name them.
const (
	cheetahShunt   = "shunt"  // affinity cookie, round robin
	cheetahFlow    = "flow"   // affinity flow: the muxes' flow tables
	cheetahHash    = "hash"   // affinity hash: hosts repair
	cheetahMaglev  = "maglev" // affinity hash, without repair
	cheetahModulo  = "sim-modulo"
	cheetahTheirs  = "cheetah" // Cheetah's encoding, as published, at the server
	cheetahDirect  = "none"    // unchanged timestamps
	cheetahStep    = "step"    // case of the rows of one step
	brokenField    = "broken"
	pushDelayField = "worst_s"
)

var cheetahSuite = Suite{
	Name:  "cheetah",
	Title: "In a real network",
	About: "A laboratory with a client, a router, three muxes, four hosts with their agents, and 32 servers: each is a network namespace with a kernel's TCP and a process of its own behind a device " +
		"of its host. **`scaling`**: four services over the same servers hold 2,000 connections each, over which messages are sent and echoed all the time, while seven servers come to the 24, " +
		"a mux is lost, comes back, the key of cookies is replaced, eight servers drain, another mux is lost and comes back, one step after the other; 50 connections more begin after each step. `shunt` has `affinity: " +
		"cookie` with `scheduler: round-robin`; `flow` has `affinity: flow` with Maglev; `hash` has `affinity: hash`, where hosts repair; `maglev` the same with `repairWindow: 0s`. " +
		"`sim-modulo` is plain hashing, simulated with the addresses of the first connections of `maglev`. A connection is broken that was reset, or from which nothing was heard for 30 s. " +
		"**`idle-1`**, **`idle-70`** (and `idle-700`, when it is named, in a section of its own): a server answers, is silent for so many seconds and then sends a line, without keep-alives; `at_once` are the lines that " +
		"were there within a second, `worst_s` is how late the latest was. `shunt` goes through muxes and hosts with cookies; `cheetah` goes straight to a server at whose device a program changes " +
		"timestamps as the authors' kernel does (`bpf/proof`); `none` goes straight to one as it is. `paws` are the segments that the clients' kernels dropped as old (`PAWSEstab`), `tsecr` those that the " +
		"servers' dropped because of their echo (`TSEcrRejected`). **`completion`**: 16 of the servers work on one request at a time, for 300 ms on average, and let others wait; requests, each a connection, " +
		"come at random times for a minute, whatever became of those before: the same at the same moment to a service of each scheduler, whose queues are apart. `uniform`: all need the same; `bimodal`: every tenth needs " +
		"ten times as much as the others; `skewed`: a thousand times (Cheetah's Figure 8). `adaptive` is Cheetah's AWRR by connections. `hash` is `affinity: hash`, the others are `affinity: cookie`; hosts look at their servers every 10 ms (`shunt host --load-interval`). `sim-hash`, `sim-p2c` and `sim-least` are the bounds of that: simulated " +
		"with the very same requests and one balancer that sees each begin and end at once, and gives it to any server, to the less busy of two, to one that has the fewest, the former two as the median of 101 " +
		"runs; `p99_better` is against `hash` of the laboratory, and of `sim-…` against `sim-hash`. Times are from when a request is due to its answer, and the first fifth is left out.",
	Plotted: []string{brokenPercent}, Unit: "% of the connections broken", Series: engineField,
	Cases: []string{"scaling", "idle-1", "idle-70", "idle-700", completionCase},
	Takes: 14 * time.Minute, TakesShort: time.Minute,
	Goals: []Goal{
		none("scaling", brokenField).of(cheetahShunt),
		none("idle-1", "late").of(cheetahShunt), none("idle-70", "late").of(cheetahShunt), none("idle-700", "late").of(cheetahShunt),
		none("idle-70", "paws").of(cheetahShunt), none("idle-70", "tsecr").of(cheetahShunt),
		atLeast(completionCase, betterField, 2).of("p2c"), atLeast(completionCase, betterField, 2).of("least-connections"),
	},
	results: &results{dir: "results/cheetah", detail: []string{cheetahStep}, apart: []string{"idle-700"}, files: cheetahFiles},
	run:     runCheetah,
}

// cheetahSizes are the sizes of a run.
type cheetahSizes struct {
	hosts, vms, muxes    int
	servers, come, leave int           // of the scaling case
	first, more          int           // connections of each engine: at first, and after each step
	pushes               int           // of each engine and silence
	workers              int           // servers of the completion case
	requests             time.Duration // how long they arrive
}

func (o Options) cheetahSizes() cheetahSizes {
	if o.Short {
		return cheetahSizes{hosts: 2, vms: 3, muxes: 2, servers: 4, come: 2, leave: 2, first: 40, more: 5, pushes: 4, workers: 4, requests: time.Second}
	}
	return cheetahSizes{hosts: 4, vms: 8, muxes: 3, servers: 24, come: 7, leave: 8, first: 2000, more: 50, pushes: 24, workers: 16, requests: 75 * time.Second}
}

func runCheetah(ctx context.Context, o Options, emit func(Row)) error {
	sizes := o.cheetahSizes()
	topology := lab.DefaultTopology()
	topology.Hosts, topology.Muxes, topology.Clients = lab.Hosts{Count: sizes.hosts, VMs: sizes.vms}, sizes.muxes, 3
	return withRigOf(ctx, o, topology, func(ctx context.Context, r *rig) error {
		if o.wants("scaling") {
			if err := (&scaling{rig: r, o: o, sizes: sizes}).play(ctx, emit); err != nil {
				return err
			}
		}
		if err := r.pushes(ctx, o, sizes, emit); err != nil {
			return err
		}
		if o.wants(completionCase) {
			return r.completion(ctx, o, sizes, emit)
		}
		return ctx.Err()
	})
}

// cheetahFiles returns the files of the scaling steps, of the pushes, and of the request durations.
func cheetahFiles(rows []Row) (files []resultFile) {
	of := func(cases ...string) []Row {
		return without(rows, func(r Row) bool { return !slices.Contains(cases, r.Case) })
	}
	if steps := of(cheetahStep); len(steps) > 0 {
		files = append(files, resultFile{name: "lab-broken", title: "broken connections in the laboratory", rows: steps, panels: []figure.Panel{stepPanel(steps)}})
	}
	if pushes := of("idle-1", "idle-70"); len(pushes) > 0 {
		files = append(files, resultFile{name: "lab-idle", title: "silence in the laboratory", rows: pushes, panels: []figure.Panel{pushPanel(pushes)}})
	}
	if long := of("idle-700"); len(long) > 0 {
		files = append(files, resultFile{name: "lab-idle-700", rows: long})
	}
	if took := of(completionCase); len(took) > 0 {
		files = append(files, resultFile{name: "lab-completion", title: "completion of requests in the laboratory", rows: took, panels: completionPanels(took)})
	}
	return files
}

// seriesOf returns a figure's line for each engine. at returns the position of a row across all
// lines.
func seriesOf(rows []Row, of string, at func(Row) float64) (lines []figure.Line) {
	for _, r := range rows {
		i := slices.IndexFunc(lines, func(l figure.Line) bool { return l.Name == r.text(engineField) })
		if i < 0 {
			i = len(lines)
			lines = append(lines, figure.Line{Name: r.text(engineField)})
		}
		lines[i].X, lines[i].Y = append(lines[i].X, at(r)), append(lines[i].Y, r.Get(of))
	}
	return lines
}

// stepPanel draws the broken share of each engine over the steps.
func stepPanel(rows []Row) figure.Panel {
	p := figure.Panel{Title: "connections broken since the beginning", X: "servers that take connections; mux lost (−), back (+); new key", Y: "% of the connections"}
	p.Lines = seriesOf(rows, brokenPercent, func(r Row) float64 { return r.Get("number") })
	for _, r := range rows {
		if n := int(r.Get("number")); n == len(p.Ticks) {
			p.Ticks = append(p.Ticks, figure.Tick{At: float64(n), Label: r.text("mark")})
		}
	}
	return p
}

// pushPanel draws the delay of each engine's latest push.
func pushPanel(rows []Row) figure.Panel {
	p := figure.Panel{Title: "a server speaks after a silence: how late the latest is heard", X: "silence in seconds", Y: "seconds", LogX: true}
	p.Lines = seriesOf(rows, pushDelayField, func(r Row) float64 { return r.Get("idle_s") })
	for _, s := range silences {
		if s.long {
			continue
		}
		p.Ticks = append(p.Ticks, figure.Tick{At: s.after.Seconds(), Label: s.after.String()})
	}
	return p
}
