package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shuntlb/shunt/internal/cid"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
)

var dataplaneSuite = Suite{
	Name:  "dataplane",
	Title: "The packet walks of mux and host",
	About: "Nanoseconds per packet over a floor that only encapsulates, measured in the kernel's test runner on one " +
		"pinned CPU: a front program makes every repeat a fresh 64-byte TCP packet of a random flow; null target, floor and " +
		"mux take short turns; the figure is the median over the repetitions. The mux is the real program with tables " +
		"written by its own agent code: keyed hash, checks and counters on, 100 backends. `hash/N` has N flows to one " +
		"endpoint; `flow/N` has N flows in a flow table of 4 Mi entries (16 Mi for `flow/4Mi`), all known and trusted, " +
		"`hits` the percentage that was found there; `-20000ep` spreads them over 20,000 endpoints of 5 backends each; in " +
		"`flow/new` every packet is the SYN of a new flow, the table is full and each evicts an untrusted flow, while no " +
		"trusted one goes. `cookie/N` has N flows whose packets echo a timestamp with a cookie: `hits` is the percentage that was sent by it, without ring and table; in `cookie/track-N` each is a connection with a record, which every packet finds and counts in: Cheetah's stateful balancer (NSDI 2020, section 5), which the paper reports to be near the stateless one; here a record in memory costs seven times a cookie alone, because the stateless case reads no line per connection. `quic-…/N` has packets of QUIC with short headers and connection ids of 17 octets, in clear " +
		"(`quic-plain`) or encrypted: `quic-aes` by one block, `quic-aes4`, of 16 octets, by four passes. `hits` went where their id says. " +
		"`snat/N` are answers to N connections of the servers' own: no endpoint takes them, and the port tells the server. In `sched/NAME` every packet begins a flow too, in a table that fits into caches, and is given to a member by that scheduler; `over_ring_ns` " +
		"is what that takes beyond the ring's choice in the same run, `choice_ns` what a choice takes by itself, in a loop with all it reads in the caches, and " +
		"`ring_choice_ns` what the ring's does there, without its hash. `katran_ns` is what Katran takes over the floor in a harness of the same rules on this kind of " +
		"machine, whose memory answered in about 60 ns. `line_ns` is what a random cache line of 64 MiB cost at the time: `-1Mi` cases are " +
		"made of it. Cases with 20,000 endpoints are left out of the plot.\n\n" +
		"`host/…` are the host's two programs, as its agent attaches them, by the same method: 8 servers of one service, IPv4, a flow table of " +
		"4 Mi with 1 Mi known flows (one with `-1`). `host/in`: a client's packet of a known flow leaves its IP-in-IP tunnel, is " +
		"translated and gets its route; the floor takes the outer header off and sends the packet on, without a look at it " +
		"(what the front needs to put the packet back into its tunnel is part of `floor_ns`, not of `over_floor_ns`). " +
		"`host/new`: the same for SYNs, each of a new flow, which takes a place in the table. `host/out`: a server's answer gets the VIP; " +
		"the floor does nothing, so this is all it costs. `host/repair`: a packet of a flow that is not known, of a slot that another host's " +
		"backend had before, is readdressed and sent on; the floor sends it on as it is. `helpers_ns` is what a program takes over the same floor that " +
		"calls the kernel's helpers which such a packet needs and does nothing else. Counters must say that every packet was treated so, and " +
		"`hits` of them found their flow (or, with `new` and `repair`, a place or an owner). `host/stamp-in` and `host/stamp-out` are `host/in` and `host/out` of flows " +
		"whose timestamps carry cookies; here `floor_ns` is what packets with timestamps of flows without cookies take in the same run, and `over_floor_ns` what cookies add.",
	Plotted: []string{"floor_ns", "over_floor_ns"}, Unit: "ns per packet",
	Unplotted: []string{"hash/1Mi-20000ep", "flow/1Mi-20000ep"},
	Takes:     4 * time.Minute, TakesShort: 40 * time.Second,
	Goals: []Goal{
		atMost("hash/1", "over_floor_ns", 25), atMost("flow/1", "over_floor_ns", 25), atMost("flow/64Ki", "over_floor_ns", 50),
		atMost("flow/1Mi", "over_floor_ns", 110), atMost("flow/1Mi-20000ep", "over_floor_ns", 130), atMost("flow/new", "over_floor_ns", 130),
		atMost("flow6/1Mi", "over_floor_ns", 110),
		atMost("cookie/1", "over_floor_ns", 50), atMost("cookie/1Mi", "over_floor_ns", 50), atMost("cookie6/1Mi", "over_floor_ns", 65), atMost("cookie/track-1Mi", "over_floor_ns", 400),
		atMost("quic-plain/1Mi", "over_floor_ns", 45), atMost("quic-aes/1Mi", "over_floor_ns", 140),
		atMost("host/stamp-in", "over_floor_ns", 60), atMost("host/stamp-out", "over_floor_ns", 60),
	},
	curve: &curve{
		title: "Flow table: cost of a packet by the number of flows", x: "flows",
		points: map[string]float64{
			"flow/1": 1, "flow/1Ki": 1 << 10, "flow/16Ki": 1 << 14, "flow/64Ki": 1 << 16, "flow/256Ki": 1 << 18,
			"flow/1Mi": 1 << 20, "flow/4Mi": 1 << 22,
		},
	},
	run: runDataplane,
}

func init() {
	for _, c := range muxCases {
		dataplaneSuite.Cases = append(dataplaneSuite.Cases, c.name)
	}
	for _, c := range scheduleCases {
		dataplaneSuite.Cases = append(dataplaneSuite.Cases, c.name)
		dataplaneSuite.Goals = append(dataplaneSuite.Goals, atMost(c.name, "over_ring_ns", 40), atMost(c.name, "choice_ns", 40))
	}
	for _, c := range hostCases {
		dataplaneSuite.Cases = append(dataplaneSuite.Cases, c.name)
	}
}

// muxCase is the traffic and the tables of one case.
type muxCase struct {
	name    string
	traffic benchrun.Traffic
	members int    // of each endpoint, out of benchBackends
	table   uint32 // entries of the flow table; 0: affinity hash
	katran  string // what Katran takes over the floor, in ns
}

// benchBackends is the number of backends of all cases together.
const benchBackends = 100

const (
	ki = 1 << 10
	mi = 1 << 20
)

// few is the number of members where many endpoints share the backends: rings of 512 slots, 20 MB in all.
const few = 5

var muxCases = []muxCase{
	{"hash/1", v4(1, 1), benchBackends, 0, "86"},
	{"hash/1Mi", v4(mi, 1), benchBackends, 0, ""},
	{"hash6/1", v6(1, 1), benchBackends, 0, ""},
	{"hash6/1Mi", v6(mi, 1), benchBackends, 0, ""},
	{"hash/1Mi-20000ep", v4(mi, 20000), few, 0, ""},
	{"flow/1", v4(1, 1), benchBackends, 4 * mi, "86"},
	{"flow/1Ki", v4(ki, 1), benchBackends, 4 * mi, ""},
	{"flow/16Ki", v4(16*ki, 1), benchBackends, 4 * mi, ""},
	{"flow/64Ki", v4(64*ki, 1), benchBackends, 4 * mi, "167–254"},
	{"flow/256Ki", v4(256*ki, 1), benchBackends, 4 * mi, ""},
	{"flow/1Mi", v4(mi, 1), benchBackends, 4 * mi, "387–404"},
	{"flow/4Mi", v4(4*mi, 1), benchBackends, 16 * mi, ""},
	{"flow/1Mi-20000ep", v4(mi, 20000), few, 4 * mi, "445–490"},
	{"flow/new", benchrun.Traffic{Family: benchrun.IPv4, Flows: mi, VIPs: 1, New: true}, benchBackends, 4 * mi, "800–950"},
	{"flow6/1Mi", v6(mi, 1), benchBackends, 4 * mi, "403–420"},
	{"cookie/1", cookies(v4(1, 1)), benchBackends, 0, ""},
	{"cookie/64Ki", cookies(v4(64*ki, 1)), benchBackends, 0, ""},
	{"cookie/1Mi", cookies(v4(mi, 1)), benchBackends, 0, "387–404"},
	{"cookie6/1Mi", cookies(v6(mi, 1)), benchBackends, 0, "403–420"},
	{"cookie/track-1Mi", cookies(v4(mi, 1)), benchBackends, 0, ""},
	{"quic-plain/1Mi", quics(v4(mi, 1), cid.Plain, 13), benchBackends, 0, ""},
	{"quic-aes/1Mi", quics(v4(mi, 1), cid.QUICLB, 13), benchBackends, 0, ""},
	{"quic-aes4/1Mi", quics(v4(mi, 1), cid.QUICLB, 12), benchBackends, 0, ""},
	{"snat/1", v4(1, 1), benchBackends, 0, ""},
	{"snat/1Mi", v4(mi, 1), benchBackends, 0, ""},
}

// snat says that no endpoint takes the packets: they are for ports that servers send from.
func (c muxCase) snat() bool { return strings.HasPrefix(c.name, "snat/") }

// cookies makes packets carry the cookie of one of the backends.
func cookies(t benchrun.Traffic) benchrun.Traffic {
	t.CookieMembers = benchBackends
	return t
}

// quics makes packets those of QUIC, with connection ids of one of the backends: server ids of three octets, and a nonce.
func quics(t benchrun.Traffic, f cid.Format, nonce uint8) benchrun.Traffic {
	t.QUIC, t.CIDs = benchBackends, cid.Set{Format: f, Configs: []cid.Config{{ID: 3, Key: ringKey, ServerID: 3, Nonce: nonce}}}
	return t
}

// quic says that packets are of QUIC.
func (c muxCase) quic() bool { return c.traffic.QUIC > 0 }

// cookie says that packets carry cookies.
func (c muxCase) cookie() bool { return c.traffic.CookieMembers > 0 }

// tracked says that all flows are connections with records.
func (c muxCase) tracked() bool { return strings.HasPrefix(c.name, "cookie/track-") }

// limits are the sizes of the mux's tables: of records twice as many as there are flows.
func (c muxCase) limits() dataplane.MuxLimits {
	limits := dataplane.MuxLimits{Flows: c.table}
	if c.tracked() {
		limits.Connections = 2 * c.traffic.Flows
	}
	return limits
}

func v4(flows, vips uint32) benchrun.Traffic {
	return benchrun.Traffic{Family: benchrun.IPv4, Flows: flows, VIPs: vips}
}

func v6(flows, vips uint32) benchrun.Traffic {
	return benchrun.Traffic{Family: benchrun.IPv6, Flows: flows, VIPs: vips}
}

func runDataplane(ctx context.Context, o Options, emit func(Row)) error {
	cpu, err := benchrun.LastCPU()
	if err != nil {
		return err
	}
	lines := newLineTimer()
	for _, c := range muxCases {
		if !o.wants(c.name) {
			continue
		}
		err := benchrun.Pinned(cpu, func() error {
			row, err := c.run(ctx, o)
			row.Fields = append(row.Fields, Field{"line_ns", round(lines.median())})
			if err == nil {
				emit(row)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
	}
	for _, c := range scheduleCases {
		if o.Katran != "" || !o.wants(c.name) {
			continue
		}
		err := benchrun.Pinned(cpu, func() error {
			row, err := c.run(ctx, o)
			row.Fields = append(row.Fields, Field{"line_ns", round(lines.median())})
			if err == nil {
				emit(row)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
	}
	for _, c := range hostCases {
		if o.Katran != "" || !o.wants(c.name) {
			continue
		}
		row, err := c.run(ctx, o, cpu)
		if err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
		row.Fields = append(row.Fields, Field{"line_ns", round(lines.median())})
		emit(row)
	}
	return nil
}

// Sizes of a run. A repetition is long enough to pass through the tables many times over, short enough that the
// machine does not change during it. Beside a peer every turn begins with caches full of the other's tables: it is long,
// so that what one pays for the other counts little.
const (
	dataplaneRounds  = 15
	dataplanePackets = 1 << 20
	dataplaneTurns   = 8
	peerRounds       = 11
	peerPackets      = 1 << 20
	peerTurns        = 1
	shortRounds      = 1
	shortPackets     = 1 << 16
	// spotChecks is the number of flows whose outer header is compared with the walk that Trace describes.
	spotChecks = 64
)

// effort is the size of a run with these options.
func (c muxCase) effort(o Options) benchrun.Effort {
	switch {
	case o.Short:
		return benchrun.Effort{Rounds: shortRounds, Packets: shortPackets, Turns: dataplaneTurns}
	case o.Katran != "":
		return benchrun.Effort{Rounds: peerRounds, Packets: peerPackets, Turns: peerTurns}
	default:
		return benchrun.Effort{Rounds: dataplaneRounds, Packets: dataplanePackets, Turns: dataplaneTurns}
	}
}

// run measures one case.
func (c muxCase) run(ctx context.Context, o Options) (Row, error) {
	mux, err := benchrun.OpenMux(c.limits())
	if err != nil {
		return Row{}, err
	}
	defer mux.Close()
	state, hops := c.tables()
	if err := mux.SetNextHops(hops); err != nil {
		return Row{}, err
	}
	if err := mux.Apply(state); err != nil {
		return Row{}, err
	}
	if err := c.lease(mux); err != nil {
		return Row{}, err
	}
	harness, err := benchrun.Open(c.traffic, benchrun.MuxFrags)
	if err != nil {
		return Row{}, err
	}
	defer harness.Close()
	if err := c.check(harness, mux); err != nil {
		return Row{}, err
	}
	programs := []benchrun.Target{mux.Target()}
	var peer *katranPeer
	if o.Katran != "" {
		if peer, err = c.openKatran(o, harness); err != nil {
			return Row{}, err
		}
		defer peer.program.Close()
		programs = append(programs, peer.program.Target())
	}
	audit, err := c.begin(harness, mux)
	if err != nil {
		return Row{}, err
	}
	effort := c.effort(o)
	got, err := harness.Compare(ctx, programs, effort, func(i int) {
		o.progressf("dataplane %s: repetition %d of %d", c.name, i+1, effort.Rounds)
	})
	if err != nil {
		return Row{}, err
	}
	hits, err := audit.end(mux, got.Packets[0])
	if err != nil {
		return Row{}, err
	}
	row := c.row(got, hits)
	if peer == nil {
		if c.katran != "" {
			row.Fields = append(row.Fields, Field{"katran_ns", c.katran})
		}
		return row, nil
	}
	fields, err := peer.end(harness, got)
	row.Fields = append(row.Fields, fields...)
	return row, err
}

// row sums up what was measured of the mux.
func (c muxCase) row(got benchrun.Comparison, hits float64) Row {
	row := Row{Case: c.name, Fields: comparisonFields(got)}
	if c.cookie() || c.quic() || c.table > 0 && !c.traffic.New {
		row.Fields = append(row.Fields, Field{"hits", round(100 * hits)})
	}
	return row
}

// comparisonFields sum up what was measured of the first program.
func comparisonFields(got benchrun.Comparison) []Field {
	var over, floor []float64
	for _, r := range got.Rounds {
		over, floor = append(over, r.OverFloor(0)), append(floor, r.NetFloor())
	}
	return []Field{
		{"over_floor_ns", round(Median(over))},
		{"floor_ns", round(Median(floor))},
		{"min_over_floor_ns", round(slices.Min(over))},
		{"runs", len(over)},
		{"packets", got.Packets[0]},
	}
}

// check sends single packets of flows spread over the traffic and compares each with what Trace says of it.
func (c muxCase) check(harness *benchrun.Harness, mux *benchrun.Mux) error {
	for i := range uint32(spotChecks) {
		flow := i * (c.traffic.Flows / spotChecks)
		run, err := harness.One(mux.Target(), flow)
		if err != nil {
			return err
		}
		want, err := mux.Trace(run.Last)
		if err != nil {
			return err
		}
		outer, err := run.Outer(c.traffic.Family)
		if err != nil {
			return fmt.Errorf("flow %d, %+v: verdict %d: %w", flow, run.Last, run.Verdict, err)
		}
		// Where flows are remembered, the source varies with the flow table's hash.
		if outer.Destination != want.Outer || c.table == 0 && outer.Source != want.Source {
			return fmt.Errorf("flow %d, %+v: outer header %s to %s, trace says %s to %s (%s)",
				flow, run.Last, outer.Source, outer.Destination, want.Source, want.Outer, want.Verdict)
		}
	}
	return nil
}
