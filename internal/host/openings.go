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

// tuneEvery is how often the clock that timestamps are made with is set by the machine's.
const tuneEvery = time.Second

// Headers that a segment's size leaves room for (RFC 9293 section 3.7.1, RFC 6691).
const (
	headers4 = 40
	headers6 = 60
)

// openings makes the TCP handshakes of endpoints whose cookie is in the server's own clock (lb.CookieCO).
type openings struct {
	// open loads the program; it is asked once an endpoint needs it, and again after it failed.
	open   func() (dataplane.HostCOTables, error)
	sysctl func(key string) (string, error)
	clock  clock.Clock
	log    *slog.Logger

	// cannot is why this machine's kernel makes no handshakes; empty when it does. Set before the first call.
	cannot string
	// own are the machine's addresses; nil: not known. Set before the first call.
	own func() ([]netip.Addr, error)

	mu       sync.Mutex
	tables   dataplane.HostCOTables // nil: nobody needed it yet, or it failed
	plan     *plan.Plan             // the last one
	settings [len(openingSettings)]bool
	wanted   bool // the plan has such endpoints
	faults   []string
}

// openingSettings are those of the kernel's TCP that handshakes depend on.
var openingSettings = [...]string{"tcp_timestamps", "tcp_sack", "tcp_window_scaling"}

func newOpenings(open func() (dataplane.HostCOTables, error), sysctl func(string) (string, error), c clock.Clock, log *slog.Logger) *openings {
	return &openings{open: open, sysctl: sysctl, clock: c, log: log}
}

// openOpenings makes those of a host, and asks its kernel whether it can.
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

// firstLine is what is said before a verifier's log.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// coEndpoints are the endpoints of a plan that the host makes handshakes for, and what is wrong with those that it cannot.
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

// adopt goes on with what an agent before left, before there is a plan.
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

// follow makes the handshakes those of a plan. What the machine cannot do is told by trouble; the servers' kernels then make them, without cookies. The error is of a
// program or a table that was refused: then others, or other keys, may be in it than the plan says.
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
		return nil // the usual host: nothing of the kernel is read
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
		return nil // as any other problem of the machine
	}
	return errors.New(fault)
}

// mute is what to do where handshakes are not made here: timestamps of the kernel's own would be read as cookies.
const mute = " (sysctl -w net.ipv4.tcp_timestamps=0 keeps muxes from reading the kernel's own timestamps as cookies)"

// strangers are servers of the plan that are not on this very machine: their connections have no cookies.
func (h *openings) strangers() (faults []string) {
	needs := func(b plan.Binding) bool { return b.Cookie && !b.Rewrite }
	if h.own == nil || !slices.ContainsFunc(h.plan.Bindings, needs) {
		return nil
	}
	own, err := h.own()
	if err != nil {
		return nil // the agent says so elsewhere
	}
	for i := range h.plan.Bindings {
		if b := &h.plan.Bindings[i]; needs(*b) && !slices.Contains(own, b.DIP) {
			faults = append(faults, fmt.Sprintf("%s port %d: its server %s is not on this machine itself, as cookie.form co needs: its connections have no cookies", b.Key.VIP, b.Key.Port, b.DIP))
		}
	}
	return faults
}

// read are the openingSettings.
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

// on tells whether a setting of TCP is not 0. What cannot be read is as the kernel has it by default.
func (h *openings) on(name string) bool {
	v, err := h.sysctl("net/ipv4/" + name)
	return err != nil || strings.TrimSpace(v) != "0"
}

// run keeps the clock, and follows the kernel's settings, until ctx ends.
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

// tend sets the clock, and makes of the plan what other settings make of it.
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
		_ = h.followLocked() // told by trouble: the plan was obeyed before
	}
}

// counters are what became of segments, under names that begin with co_.
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

// trouble is what keeps cookies out of connections, empty when nothing does.
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

// openingStatus puts what became of handshakes into a status, and tells what keeps cookies out of them.
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
