package bench

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/dataplane/benchrun"
	"github.com/shuntlb/shunt/internal/mux"
	"github.com/shuntlb/shunt/internal/ring"
)

var memorySuite = Suite{
	Name:  "memory",
	Title: "Memory and capacity",
	About: "`tables` is the kernel memory of all tables of a mux at their usual sizes, as the kernel accounts it, holding " +
		"20,000 endpoints of 10 backends each, every one with a ring of 1,024 slots, and a flow table of 4 Mi entries. `agent` is what " +
		"the plan, the rings and the bookkeeping of the same take in the agent (anonymous memory at rest). `snat` is the table of ports " +
		"that servers send from, of 64 VIPs: 4 Mi ports. `total` is the sum. `flows-16Mi` is a flow table alone. `host-1Mi` and `host-4Mi` are all tables of a host with room " +
		"for so many flows, `per_flow` what its flow table takes for each (NGLB's module, which keeps sessions on hosts too, is reported to take 60 bytes). The rows below are what one mux can hold: " +
		"the tables are made, the state is applied (`apply_ms`, to the last word stored), and packets to 64 of its endpoints or " +
		"members are sent through the program and compared with what the trace says.",
	Plotted: []string{"bytes"}, Unit: "bytes",
	Cases:     []string{"tables", "agent", "snat", "total", "flows-16Mi", "host-1Mi", "host-4Mi", "services-64Ki", "backends-1Mi", "members-65535"},
	Unplotted: []string{"services-64Ki", "backends-1Mi", "members-65535"},
	Takes:     40 * time.Second, TakesShort: 10 * time.Second,
	Goals: []Goal{atMost("total", "bytes", 256<<20), atMost("flows-16Mi", "bytes", 128<<20+64<<10)},
	run:   runMemory,
}

const holdEndpoints = 20000

func runMemory(ctx context.Context, o Options, emit func(Row)) error {
	if o.wants("tables") || o.wants("agent") || o.wants("snat") || o.wants("total") {
		o.progressf("memory: 20,000 endpoints")
		if err := holdFleet(o, emit); err != nil {
			return err
		}
	}
	if o.wants("flows-16Mi") {
		bytes, err := flowTable(16 * mi)
		if err != nil {
			return err
		}
		emit(bytesRow("flows-16Mi", bytes))
	}
	for _, c := range hostSizes {
		if !o.wants(c.name) {
			continue
		}
		row, err := c.run(o)
		if err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
		emit(row)
	}
	for _, c := range capacities {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !o.wants(c.name) || o.Short {
			continue
		}
		o.progressf("memory %s", c.name)
		row, err := c.run()
		if err != nil {
			return fmt.Errorf("case %s: %w", c.name, err)
		}
		emit(row)
	}
	return nil
}

func bytesRow(name string, bytes uint64) Row {
	return Row{Case: name, Fields: []Field{{"bytes", bytes}}}
}

// holdFleet measures tables and agent with 20,000 endpoints.
func holdFleet(o Options, emit func(Row)) error {
	before, err := anonymous()
	if err != nil {
		return err
	}
	m, err := benchrun.OpenMux(dataplane.MuxLimits{})
	if err != nil {
		return err
	}
	defer m.Close()
	p, planner := fleet(holdEndpoints/fleetPorts, fleetPorts, fleetMembers, nil), mux.NewPlanner()
	if err := planner.Apply(m, p); err != nil {
		return err
	}
	after, err := anonymous()
	if err != nil {
		return err
	}
	runtime.KeepAlive(p)
	runtime.KeepAlive(planner)
	tables, snat, err := footprint(m)
	if err != nil {
		return err
	}
	agent := after - min(before, after)
	for _, row := range []Row{
		bytesRow("tables", tables), bytesRow("agent", agent), bytesRow("snat", snat), bytesRow("total", tables+agent+snat),
	} {
		if o.wants(row.Case) {
			emit(row)
		}
	}
	return nil
}

// footprint returns the kernel memory of a mux's tables, without the leased ports, and that of the
// leased ports.
func footprint(m *benchrun.Mux) (sum, snat uint64, err error) {
	tables, err := m.Footprint()
	for name, bytes := range tables {
		if name == "snat_blocks" {
			snat = bytes
		} else {
			sum += bytes
		}
	}
	return sum, snat, err
}

// flowTable returns the kernel memory of a flow table with this many entries.
func flowTable(entries uint32) (uint64, error) {
	m, err := benchrun.OpenMux(dataplane.MuxLimits{Flows: entries})
	if err != nil {
		return 0, err
	}
	defer m.Close()
	tables, err := m.Footprint()
	return tables["flows"], err
}

// anonymous returns the anonymous memory of this process in bytes, after a garbage collection.
// Mapped tables are not part of it.
func anonymous() (uint64, error) {
	debug.FreeOSMemory()
	file, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("read own memory: %w", err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "RssAnon:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read own memory: %w", err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("read own memory: /proc/self/status has no RssAnon")
}

// capacity is the maximum of an object kind that a mux holds.
type capacity struct {
	name               string
	endpoints, members int
	code               uint8 // of each ring
	limits             dataplane.MuxLimits
}

var capacities = []capacity{
	{"services-64Ki", 64 * ki, 1, ring.CodeMin, dataplane.MuxLimits{Endpoints: 128 * ki, Members: 512 * ki, RingWords: 2 * mi}},
	{"backends-1Mi", 64 * ki, 16, 8, dataplane.MuxLimits{Endpoints: 128 * ki, Members: mi, Backends: mi, RingWords: 4 * mi}},
	{"members-65535", 1, 65535, ring.CodeMax, dataplane.MuxLimits{}},
}

// run fills a mux and sends packets through it.
func (c capacity) run() (Row, error) {
	m, err := benchrun.OpenMux(c.limits)
	if err != nil {
		return Row{}, err
	}
	defer m.Close()
	p := fleet(c.endpoints, 1, c.members, nil)
	for i := range p.Endpoints {
		p.Endpoints[i].RingCode = c.code
	}
	state := mux.NewPlanner().State(p)
	hops := map[netip.Addr]dataplane.NextHop{}
	for _, e := range state.Endpoints {
		for _, member := range e.Members {
			hops[member.Outer] = dataplane.NextHop{MAC: [6]byte{2, 0, 0, 0, 0, 1}, Ifindex: loopbackIndex}
		}
	}
	if err := m.SetNextHops(hops); err != nil {
		return Row{}, err
	}
	start := time.Now()
	if err := m.Apply(state); err != nil {
		return Row{}, err
	}
	took := m.Published().Sub(start)
	tables, snat, err := footprint(m)
	if err != nil {
		return Row{}, err
	}
	packets := muxCase{traffic: v4(mi, uint32(c.endpoints)), table: 4 * mi}
	harness, err := benchrun.Open(packets.traffic, benchrun.MuxFrags)
	if err != nil {
		return Row{}, err
	}
	defer harness.Close()
	if err := packets.check(harness, m); err != nil {
		return Row{}, err
	}
	return Row{Case: c.name, Fields: []Field{{"bytes", tables + snat}, {"apply_ms", round(float64(took) / 1e6)}}}, nil
}
