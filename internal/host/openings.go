package host

import (
	"context"
	"fmt"
	"log/slog"
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

	mu     sync.Mutex
	tables dataplane.HostCOTables // nil: nobody needed it yet, or it failed
	faults []string
}

func newOpenings(open func() (dataplane.HostCOTables, error), sysctl func(string) (string, error), c clock.Clock, log *slog.Logger) *openings {
	return &openings{open: open, sysctl: sysctl, clock: c, log: log}
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
			e.Keys[id], e.Live[id] = keys.Keys[j].Key, true
		}
		e.Mint = uint8(keys.Mint & 1)
		out = append(out, e)
	}
	return out, faults
}

// follow makes the handshakes those of a plan. What cannot be done is told by trouble; the servers' kernels then make them, without cookies.
func (h *openings) follow(p *plan.Plan) {
	endpoints, faults := coEndpoints(p)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = faults
	if len(endpoints) == 0 && h.tables == nil {
		return
	}
	if !h.on("tcp_timestamps") {
		h.faults = append(h.faults, "net.ipv4.tcp_timestamps is 0: cookie.form co needs timestamps")
		endpoints = nil
	}
	if err := h.applyLocked(endpoints); err != nil {
		h.faults = append(h.faults, "cookie.form co: "+err.Error())
		h.log.Error("make handshakes", "error", err)
	}
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

// run keeps the clock until ctx ends.
func (h *openings) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.clock.After(tuneEvery):
		}
		h.mu.Lock()
		if h.tables != nil {
			h.tables.Tune()
		}
		h.mu.Unlock()
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
		out["co_"+name] = n
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
	counts, err := a.openings.counters()
	for reason, n := range counts {
		s.Reasons = append(s.Reasons, &apiv1.ReasonCount{Reason: reason, Packets: n})
	}
	faults := a.openings.trouble()
	if err != nil {
		faults = append(faults, err.Error())
	}
	return faults
}
