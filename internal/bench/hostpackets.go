package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
)

// hostCase is the traffic of one case of the host's programs.
type hostCase struct {
	name  string
	flows uint32
	kind  hostKind
	table uint32 // size of the flow table
}

// hostKind is the handling of a case's packets.
type hostKind int

const (
	hostDelivers hostKind = iota // decapsulated, translated, delivered: their flows are known
	hostAnswers                  // from a server, translated
	hostRepairs                  // of unknown flows, which another host owned before
	hostBegins                   // SYNs of new flows
	hostRestores                 // as hostDelivers, with the cookie of their server's stamp
	hostStamps                   // as hostAnswers, with a stamped cookie
)

var hostCases = []hostCase{
	{"host/in", mi, hostDelivers, 4 * mi},
	{"host/in-1", 1, hostDelivers, 4 * mi},
	{"host/out", mi, hostAnswers, 4 * mi},
	{"host/out-1", 1, hostAnswers, 4 * mi},
	{"host/repair", mi, hostRepairs, 4 * mi},
	{"host/new", mi, hostBegins, 4 * mi},
	{"host/stamp-in", mi, hostRestores, 4 * mi},
	{"host/stamp-in-1", 1, hostRestores, 4 * mi},
	{"host/stamp-out", mi, hostStamps, 4 * mi},
	{"host/stamp-out-1", 1, hostStamps, 4 * mi},
}

// stamped reports whether packets have timestamps. Such a case measures the cost of the cookies in
// them.
func (c hostCase) stamped() bool { return c.kind == hostRestores || c.kind == hostStamps }

// hostPackets is the number of packets of each target in a repetition. It is smaller than for the
// mux because a packet costs more.
const (
	hostPackets    = 1 << 18
	shortHostFlows = 1 << 14
	shortHostTable = 1 << 18
)

// Addresses of the packet cases' host, of another host and of its server.
var (
	hostOwn  = netip.MustParseAddr("10.20.1.1")
	hostPeer = netip.MustParseAddr("10.20.9.1")
	hostAway = netip.MustParseAddr("10.20.9.11")
)

// awayMember is the member on the other host that owned all slots before.
const awayMember = 100

// run measures one case on a CPU.
func (c hostCase) run(ctx context.Context, o Options, cpu int) (row Row, err error) {
	if o.Short {
		c.flows, c.table = min(c.flows, shortHostFlows), shortHostTable
	}
	name := o.LabName + "-packets"
	ifindex, err := hostNamespace(name)
	if err != nil {
		return row, errors.Join(err, netdev.DeleteNamespace(name))
	}
	defer func() { err = errors.Join(err, netdev.DeleteNamespace(name)) }()
	err = netdev.In(name, func() error {
		unpin, err := benchrun.PinThread(cpu)
		if err != nil {
			return err
		}
		defer unpin()
		host, err := benchrun.OpenHost(ifindex, hostPins(name), c.table)
		if err != nil {
			return err
		}
		row, err = c.measure(ctx, o, host)
		return errors.Join(err, host.Close())
	})
	return row, err
}

// hostPins returns the pin directory for a namespace's host.
func hostPins(namespace string) string { return filepath.Join("/sys/fs/bpf", "shunt-"+namespace) }

// hostNamespace makes a namespace with an uplink and a route to the servers, and returns the
// uplink's index.
func hostNamespace(name string) (int, error) {
	// Remove the namespace that a killed run left first.
	if err := netdev.DeleteNamespace(name); err != nil {
		return 0, err
	}
	if err := netdev.CreateNamespace(name); err != nil {
		return 0, err
	}
	n, err := netdev.OpenNamespace(name)
	if err != nil {
		return 0, err
	}
	defer n.Close()
	steps := []func() error{
		func() error { return netdev.SetSysctls(name, forwarding) },
		func() error { return n.SetUp("lo", true) },
		func() error {
			return netdev.AddVeth(netdev.VethEnd{Namespace: n, Name: "up"}, netdev.VethEnd{Namespace: n, Name: "away"}, liveMTU)
		},
		func() error {
			return netdev.AddVeth(netdev.VethEnd{Namespace: n, Name: "vm"}, netdev.VethEnd{Namespace: n, Name: "server"}, liveMTU)
		},
		func() error { return n.AddAddress("up", netip.PrefixFrom(hostOwn, 24)) },
		func() error {
			return n.AddRoute(netdev.Route{Destination: netip.PrefixFrom(benchrun.HostDIP(0), 24).Masked(), Device: "vm"})
		},
		func() error {
			return n.AddRoute(netdev.Route{Destination: netip.MustParsePrefix("198.18.0.0/15"), Device: "up"})
		},
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return 0, err
		}
	}
	return index(name, "up")
}

// forwarding makes a namespace forward packets from any source.
var forwarding = []netdev.Sysctl{
	{Key: "net/ipv4/ip_forward", Value: "1"}, {Key: "net/ipv4/conf/all/rp_filter", Value: "0"}, {Key: "net/ipv4/conf/default/rp_filter", Value: "0"},
}

// hostState returns the state that the host's agent would write: a service of all servers, with
// cookies if cookies is set, and a service of other servers without cookies. If displaced is set,
// it includes the change by which the first service took every slot from a member on another host.
func hostState(idle lb.HostIdle, displaced, cookies bool) dataplane.HostState {
	state := dataplane.HostState{TunnelSources: benchrun.TunnelSources(), MTU: liveMTU}
	key := lb.EndpointKey{VIP: benchrun.HostVIP(), Protocol: lb.TCP, Port: benchrun.Port}
	targets := []dataplane.HostTarget{{ID: awayMember, Outer: hostAway}}
	for i := range benchrun.HostDIPs {
		dip := benchrun.HostDIP(i)
		state.Bindings = append(state.Bindings, plan.Binding{
			Key: key, Member: uint16(i), Outer: dip, DIP: dip, DIPPort: benchrun.HostDIPPort, Rewrite: true, Idle: idle,
		})
		targets = append(targets, dataplane.HostTarget{ID: uint16(i), Outer: dip, Here: true})
	}
	for i := range benchrun.HostDIPs {
		b := state.Bindings[i]
		b.Key.VIP, b.Outer, b.DIP = benchrun.PlainVIP(), benchrun.HostDIP(benchrun.HostDIPs+i), benchrun.HostDIP(benchrun.HostDIPs+i)
		state.Bindings = append(state.Bindings, b)
		state.Bindings[i].Cookie = cookies
	}
	if cookies {
		state.Cookies = []plan.CookieKeys{{VIP: benchrun.HostVIP(), Keys: []plan.CookieKey{{Epoch: 1, Key: benchrun.HostCookieKey, Shuffled: true}}, Mint: 1}}
	}
	if displaced {
		before, now := slices.Repeat([]uint16{awayMember}, 1<<ring.CodeMin), slices.Repeat([]uint16{0}, 1<<ring.CodeMin)
		state.Repairs = []*dataplane.HostRepair{{
			Key: key, Hash: ringKey, Source: hostOwn, Turns: ring.Fold(before, now), Targets: targets, Peers: []netip.Addr{hostPeer},
		}}
	}
	return state
}

// benchHostIdle keeps flows for longer than any case takes.
var benchHostIdle = lb.HostIdle{Established: benchIdle, Opening: benchIdle, Closing: benchIdle, UDP: benchIdle, Other: benchIdle}

// measure measures the case on a host.
func (c hostCase) measure(ctx context.Context, o Options, host *benchrun.Host) (Row, error) {
	if err := host.Apply(hostState(benchHostIdle, false, c.stamped())); err != nil {
		return Row{}, err
	}
	traffic := benchrun.HostTraffic{Flows: c.flows, New: c.kind == hostBegins, Stamped: c.stamped()}
	if c.kind == hostAnswers || c.kind == hostStamps {
		traffic.Way = benchrun.HostOut
	}
	harness, err := benchrun.OpenHostHarness(host, traffic)
	if err != nil {
		return Row{}, err
	}
	defer harness.Close()
	first := uint32(0)
	if c.kind == hostRepairs {
		// The table is as full as in the other cases, with other flows.
		first = c.flows
	}
	o.progressf("dataplane %s: %d flows", c.name, c.flows)
	if err := harness.Warm(first, c.flows); err != nil {
		return Row{}, err
	}
	if c.kind == hostRepairs {
		if err := host.Apply(hostState(benchHostIdle, true, false)); err != nil {
			return Row{}, err
		}
	}
	floor, program, helpers := harness.FloorIn(), harness.In(), harness.HelpersIn()
	switch c.kind {
	case hostAnswers:
		floor, program, helpers = harness.Null(), harness.Out(), harness.HelpersOut()
	case hostRepairs:
		floor, helpers = harness.FloorRepair(), harness.HelpersRepair()
	case hostRestores:
		floor, helpers = harness.Null(), harness.InPlain()
	case hostStamps:
		floor, program, helpers = harness.Null(), harness.Out(), harness.OutPlain()
	}
	if err := c.check(harness, program); err != nil {
		return Row{}, err
	}
	audit, err := c.begin(host)
	if err != nil {
		return Row{}, err
	}
	effort := benchrun.Effort{Rounds: dataplaneRounds, Packets: hostPackets, Turns: dataplaneTurns}
	if o.Short {
		effort.Rounds, effort.Packets = shortRounds, shortPackets
	}
	got, err := harness.Compare(ctx, floor, []benchrun.Target{program, helpers}, effort, func(i int) {
		o.progressf("dataplane %s: repetition %d of %d", c.name, i+1, effort.Rounds)
	})
	if err != nil {
		return Row{}, err
	}
	packets := got.Packets[0]
	if c.stamped() {
		packets += got.Packets[1]
	}
	share, err := audit.end(host, packets)
	if err != nil {
		return Row{}, err
	}
	if c.stamped() {
		return Row{Case: c.name, Fields: append(comparisonFields(beyondPlain(got)), Field{"hits", round(100 * share)})}, nil
	}
	var least []float64
	for _, r := range got.Rounds {
		least = append(least, r.OverFloor(1))
	}
	fields := append(comparisonFields(got), Field{"hits", round(100 * share)}, Field{"helpers_ns", round(Median(least))})
	return Row{Case: c.name, Fields: fields}, nil
}

// beyondPlain makes the second program the floor.
func beyondPlain(got benchrun.Comparison) benchrun.Comparison {
	for i, r := range got.Rounds {
		got.Rounds[i].Floor = r.Programs[1]
	}
	return got
}

// check sends single packets of flows spread over the traffic and checks where they go.
func (c hostCase) check(harness *benchrun.HostHarness, program benchrun.Target) error {
	if c.kind == hostBegins {
		return nil // each would be known afterwards
	}
	vip, none := netip.AddrPortFrom(benchrun.HostVIP(), benchrun.Port), benchrun.Outer{}
	for i := range uint32(spotChecks) {
		flow := i * (c.flows / spotChecks)
		p, err := harness.One(program, flow)
		if err != nil {
			return err
		}
		dip := netip.AddrPortFrom(p.DIP, benchrun.HostDIPPort)
		var ok bool
		switch c.kind {
		case hostAnswers, hostStamps:
			ok = p.Passed() && p.Outer == none && p.Source == vip && p.Destination == p.Client
		case hostRepairs:
			ok = p.Redirected() && p.Outer == benchrun.Outer{Source: hostOwn, Destination: hostAway} && p.Source == p.Client && p.Destination == vip
		default:
			ok = p.Redirected() && p.Outer == none && p.Source == p.Client && p.Destination == dip
		}
		if !ok {
			return fmt.Errorf("flow %d: verdict %d, %s to %s in %+v", flow, int32(p.Verdict), p.Source, p.Destination, p.Outer)
		}
	}
	return nil
}

// hostAudit checks by the host's own counters and flow table that a run matched its case.
type hostAudit struct {
	c       hostCase
	before  map[string]uint64
	trusted uint64
}

// begin records the counters and checks that the flows are known.
func (c hostCase) begin(host *benchrun.Host) (a hostAudit, err error) {
	a.c = c
	flows, err := host.Flows()
	if err != nil {
		return a, err
	}
	a.trusted = flows.ByClass[dataplane.FlowTrusted]
	if share := float64(a.trusted) / float64(c.flows); share < wantKnown {
		return a, fmt.Errorf("%d of %d flows are known: want %g", a.trusted, c.flows, wantKnown)
	}
	counters, err := host.Counters()
	a.before = counters.Reasons
	return a, err
}

// end checks a run of the given number of packets. It returns the share of them with the wanted
// result of the flow table.
func (a hostAudit) end(host *benchrun.Host, packets uint64) (float64, error) {
	flows, err := host.Flows()
	if err != nil {
		return 0, err
	}
	counters, err := host.Counters()
	if err != nil {
		return 0, err
	}
	share, err := a.judge(counters, packets)
	if bad := counters.Reasons["cookie_foreign"] + counters.Reasons["cookie_rebuilt"] + counters.Reasons["cookie_contended"]; err == nil && bad > 0 {
		err = fmt.Errorf("%d packets had no cookie of theirs: reasons %v", bad, counters.Reasons)
	}
	if err == nil && (a.c.kind == hostDelivers || a.c.kind == hostRestores) {
		// A client's packet whose flow was not found created one.
		share = 1 - float64(flows.ByClass[dataplane.FlowUntrusted])/float64(packets)
	}
	if err == nil && share < wantKnown {
		err = fmt.Errorf("%g of the packets met the flow table as they should: want %g", share, wantKnown)
	}
	return share, err
}

// judge returns the share of a run's packets that the host handled as the case requires, by its
// counters, or an error.
func (a hostAudit) judge(after dataplane.HostCounters, packets uint64) (float64, error) {
	reason := map[hostKind]string{hostDelivers: "in_delivered", hostAnswers: "out_returned", hostRepairs: "repaired_away", hostBegins: "in_delivered",
		hostRestores: "in_delivered", hostStamps: "out_returned"}[a.c.kind]
	n := after.Reasons[reason] - a.before[reason]
	share := float64(n) / float64(max(packets, 1))
	// A reply of an unknown flow passes, and is not counted as returned.
	if n != packets && a.c.kind != hostAnswers && a.c.kind != hostStamps {
		return share, fmt.Errorf("%s is %d of %d packets: want all (reasons %v)", reason, n, packets, after.Reasons)
	}
	if trusted := after.Flows.ByClass[dataplane.FlowTrusted]; trusted != a.trusted {
		return share, fmt.Errorf("%d trusted flows are left of %d", trusted, a.trusted)
	}
	return share, nil
}
