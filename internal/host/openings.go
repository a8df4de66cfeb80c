package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/plan"
)

// tuneEvery is how often the clock for timestamps is set from the machine's clock.
const tuneEvery = time.Second

// Lengths of the headers that a segment's size leaves room for (RFC 9293 section 3.7.1, RFC 6691).
const (
	headers4 = 40
	headers6 = 60
)

// openings offloads the TCP handshakes of endpoints whose cookie is in the server's own clock
// (lb.CookieCO).
type openings struct {
	// open loads the program. It is called once an endpoint needs the program, and again after a
	// failure.
	open   func() (dataplane.HostCOTables, error)
	sysctl func(key string) (string, error)
	clock  clock.Clock
	log    *slog.Logger

	// cannot is the reason why this machine's kernel cannot offload handshakes; empty if it can.
	// Set before the first call.
	cannot string
	// own returns the machine's addresses; nil: unknown. Set before the first call.
	own func() ([]netip.Addr, error)

	mu       sync.Mutex
	tables   dataplane.HostCOTables // nil: not needed yet, or failed
	plan     *plan.Plan             // the last one
	settings [len(openingSettings)]bool
	wanted   bool // the plan has such endpoints
	faults   []string
}

// openingSettings are the kernel's TCP settings that handshakes depend on.
var openingSettings = [...]string{"tcp_timestamps", "tcp_sack", "tcp_window_scaling"}

func newOpenings(open func() (dataplane.HostCOTables, error), sysctl func(string) (string, error), c clock.Clock, log *slog.Logger) *openings {
	return &openings{open: open, sysctl: sysctl, clock: c, log: log}
}

// openOpenings returns the handshake offload of a host, after checking whether its kernel supports
// it.
func openOpenings(tables *dataplane.Host, m Machine, log *slog.Logger) *openings {
	h := newOpenings(func() (dataplane.HostCOTables, error) { return tables.OpenCO() }, m.Sysctl, clock.System{}, log)
	h.own = m.Addresses
	if err := tables.ProbeCO(); err != nil {
		h.cannot = firstLine(err.Error())
		log.Info("this machine makes no handshakes", "error", h.cannot)
	}
	if tables.HasCO() {
		h.adopt()
	}
	return h
}

// firstLine returns the part of an error before a verifier's log.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// coEndpoints returns the endpoints of a plan whose handshakes the host offloads, and the faults of
// those for which it cannot.
func coEndpoints(p *plan.Plan) (out []dataplane.COEndpoint, faults []string) {
	for i := range p.Bindings {
		b := &p.Bindings[i]
		if !b.Cookie || b.Rewrite {
			continue
		}
		at, known := slices.BinarySearchFunc(p.Cookies, plan.CookieKeys{VNI: b.Key.VNI, VIP: b.Key.VIP}, plan.CompareCookies)
		if !known || len(p.Cookies[at].Keys) == 0 {
			faults = append(faults, fmt.Sprintf("%s port %d: there are no cookie keys of its VIP yet", b.Key.VIP, b.Key.Port))
			continue
		}
		if slices.ContainsFunc(out, func(e dataplane.COEndpoint) bool { return e.Key == b.Key }) {
			faults = append(faults, fmt.Sprintf("%s port %d: two of its members own the VIP on this machine: cookies tell of the first", b.Key.VIP, b.Key.Port))
			continue
		}
		e := dataplane.COEndpoint{Key: b.Key, Member: b.Member, MSS: uint16(min(p.MTU, 1<<16-1) - headers4)}
		if b.Key.VIP.Is6() {
			e.MSS -= headers6 - headers4
		}
		keys := &p.Cookies[at]
		for j := range keys.Keys {
			id := keys.Keys[j].ID()
			e.Keys[id], e.Live[id], e.Shuffled[id] = keys.Keys[j].Key, true, keys.Keys[j].Shuffled
		}
		e.Mint = uint8(keys.Mint & 1)
		out = append(out, e)
	}
	return out, faults
}

// adopt takes over the program of the previous agent, before there is a plan.
func (h *openings) adopt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	tables, err := h.open()
	if err != nil {
		h.log.Error("go on with handshakes", "error", err)
		return
	}
	h.tables = tables
}

// follow sets the offloaded endpoints to those of a plan. If the machine cannot offload them,
// trouble returns the reason, and the servers' kernels do the handshakes, without cookies. It
// returns an error if a program or a table was refused, because then it may contain other
// endpoints, or other keys, than the plan.
func (h *openings) follow(p *plan.Plan) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.plan = p
	return h.followLocked()
}

func (h *openings) followLocked() error {
	endpoints, faults := coEndpoints(h.plan)
	h.faults, h.wanted = append(faults, h.strangers()...), len(endpoints) > 0
	if len(endpoints) == 0 && h.tables == nil {
		return nil // the usual host: no kernel setting is read
	}
	h.settings = h.read()
	if !h.on("tcp_timestamps") {
		h.faults = append(h.faults, "net.ipv4.tcp_timestamps is 0: cookie.form co needs timestamps (sysctl -w net.ipv4.tcp_timestamps=1)")
		endpoints = nil
	}
	err := h.applyLocked(endpoints)
	if err == nil {
		return nil
	}
	fault := "cookie.form co: " + firstLine(err.Error()) + mute
	h.faults = append(h.faults, fault)
	h.log.Error("make handshakes", "error", err)
	if errors.Is(err, dataplane.ErrNoCO) {
		return nil // like any other problem of the machine
	}
	return errors.New(fault)
}

// mute is the advice for machines without offload: muxes would read timestamps of the kernel as
// cookies.
const mute = " (sysctl -w net.ipv4.tcp_timestamps=0 keeps muxes from reading the kernel's own timestamps as cookies)"

// strangers returns a fault for each server of the plan that is not on this very machine: its
// connections have no cookies.
func (h *openings) strangers() (faults []string) {
	needs := func(b plan.Binding) bool { return b.Cookie && !b.Rewrite }
	if h.own == nil || !slices.ContainsFunc(h.plan.Bindings, needs) {
		return nil
	}
	own, err := h.own()
	if err != nil {
		return nil // the agent reports it elsewhere
	}
	for i := range h.plan.Bindings {
		if b := &h.plan.Bindings[i]; needs(*b) && !slices.Contains(own, b.DIP) {
			faults = append(faults, fmt.Sprintf("%s port %d: its server %s is not on this machine itself, as cookie.form co needs: its connections have no cookies", b.Key.VIP, b.Key.Port, b.DIP))
		}
	}
	return faults
}

// read returns which of openingSettings are on.
func (h *openings) read() (on [len(openingSettings)]bool) {
	for i, name := range openingSettings {
		on[i] = h.on(name)
	}
	return on
}

func (h *openings) applyLocked(endpoints []dataplane.COEndpoint) (err error) {
	if h.tables == nil {
		if len(endpoints) == 0 {
			return nil
		}
		if h.tables, err = h.open(); err != nil {
			h.tables = nil
			return err
		}
	}
	return h.tables.Apply(dataplane.COSetup{SACK: h.on("tcp_sack"), WindowScaling: h.on("tcp_window_scaling")}, endpoints)
}

// on reports whether a TCP setting is not 0. A setting that cannot be read counts as on, the
// kernel's default.
func (h *openings) on(name string) bool {
	v, err := h.sysctl("net/ipv4/" + name)
	return err != nil || strings.TrimSpace(v) != "0"
}

// run sets the clock and applies changes of the kernel's settings until ctx ends.
func (h *openings) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.clock.After(tuneEvery):
		}
		h.tend()
	}
}

// tend sets the clock, and applies the plan again if the settings changed.
func (h *openings) tend() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tables != nil {
		if err := h.tables.Tune(); err != nil {
			h.log.Error("set the clock of handshakes", "error", err)
		}
	}
	if h.wanted && h.read() != h.settings {
		h.log.Info("the kernel's settings of TCP changed: handshakes follow them")
		_ = h.followLocked() // trouble returns the fault; the plan was applied before
	}
}

// counters returns the counts of segments, under names that begin with co_.
func (h *openings) counters() (map[string]uint64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tables == nil {
		return nil, nil
	}
	counts, err := h.tables.Counters()
	out := make(map[string]uint64, len(counts))
	for name, n := range counts {
		out[dataplane.COPrefix+name] = n
	}
	return out, err
}

// trouble returns the reasons why connections have no cookies.
func (h *openings) trouble() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.faults)
}

func (h *openings) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tables == nil {
		return nil
	}
	return h.tables.Close()
}

// openingStatus adds the counts of handshakes to a status, and returns the reasons why connections
// have no cookies.
func (a *Agent) openingStatus(s *apiv1.NodeStatus) []string {
	if a.openings == nil {
		return nil
	}
	s.NoHandshakes = a.openings.cannot
	counts, err := a.openings.counters()
	for reason, n := range counts {
		s.Reasons = append(s.Reasons, &apiv1.ReasonCount{Reason: reason, Packets: n, Class: string(dataplane.ClassOf("host", reason))})
	}
	faults := a.openings.trouble()
	if err != nil {
		faults = append(faults, err.Error())
	}
	return faults
}
