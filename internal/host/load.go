package host

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/notify"
	"github.com/shuntlb/shunt/internal/plan"
)

// loads samples the load of the members on this host: the connections in its tables, the use of its
// processors, and the values that applications report.
type loads struct {
	tables dataplane.HostTables
	clock  clock.Clock
	log    *slog.Logger
	// every is the time between two samples.
	every time.Duration
	// ticks returns the counters of the processors.
	ticks func() (load.Ticks, error)
	given *given
	// changed is notified when Take has something to return.
	changed chan struct{}

	mu       sync.Mutex
	members  []loaded
	reporter load.Reporter
	pending  map[load.Key]load.Member
	cpu      load.CPU
	// fault is the logged reason why the processors' use is unknown.
	fault string
}

// loaded is a member of the plan.
type loaded struct {
	key  load.Key
	says sayer
}

var _ agent.Loads = (*loads)(nil)

func newLoads(tables dataplane.HostTables, c clock.Clock, log *slog.Logger) *loads {
	return &loads{
		tables: tables, clock: c, log: log, every: load.SampleEvery, ticks: machineTicks, given: newGiven(c), changed: make(chan struct{}, 1), pending: map[load.Key]load.Member{},
	}
}

// lookEvery sets the sample interval. It must be called before run.
func (l *loads) lookEvery(d time.Duration) { l.every, l.cpu.Every = d, d }

// machineTicks reads the counters of this machine's processors.
func machineTicks() (load.Ticks, error) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return load.Ticks{}, err
	}
	defer f.Close()
	t, err := load.ParseTicks(f)
	if err != nil {
		return t, fmt.Errorf("read /proc/stat: %w", err)
	}
	return t, nil
}

// follow sets the members whose load is reported.
func (l *loads) follow(bindings []plan.Binding) {
	members, seen := make([]loaded, 0, len(bindings)), make(map[load.Key]bool, len(bindings))
	says := make([]sayer, 0, len(bindings))
	for i := range bindings {
		b := &bindings[i]
		m := loaded{load.Key{Endpoint: b.Key, Member: b.Member}, sayerOf(b)}
		if seen[m.key] {
			continue // another binding with a different outer address
		}
		seen[m.key] = true
		members, says = append(members, m), append(says, m.says)
	}
	l.given.follow(says)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members = members
}

// run samples until ctx ends.
func (l *loads) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.clock.After(l.every):
		}
		l.sample()
	}
}

// sample takes one sample of every member.
func (l *loads) sample() {
	type flows struct{ established, opened uint64 }
	connections := map[load.Key]flows{}
	l.tables.Connections(func(b *plan.Binding, established, opened uint64) {
		key := load.Key{Endpoint: b.Key, Member: b.Member}
		had := connections[key]
		connections[key] = flows{had.established + established, had.opened + opened}
	})
	ticks, err := l.ticks()
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	share, known := uint16(0), false
	if err == nil {
		share, known = l.cpu.Sampled(ticks)
	}
	l.tellLocked(err)
	all := make([]load.Member, 0, len(l.members))
	for i := range l.members {
		m := load.Member{Key: l.members[i].key}
		if l.every != load.SampleEvery {
			m.Every = l.every
		}
		if n, counted := connections[m.Key]; counted {
			m.Connections, m.Opened, m.Has = uint32(min(n.established, 1<<32-2)), uint32(n.opened), m.Has|load.HasConnections
		}
		if known {
			m.CPU, m.Has = share, m.Has|load.HasCPU
		}
		if v, said := l.given.of(l.members[i].says, now); said {
			m.Given, m.Has = v, m.Has|load.HasGiven
		}
		if m.Has != 0 {
			all = append(all, m)
		}
	}
	for _, m := range l.reporter.Report(all, now) {
		l.pending[m.Key] = m
	}
	if len(l.pending) > 0 {
		notify.Send(l.changed)
	}
}

// tellLocked logs a change of the processors' fault, once. mu is held.
func (l *loads) tellLocked(err error) {
	fault := ""
	if err != nil {
		fault = err.Error()
	}
	if fault != "" && fault != l.fault {
		l.log.Warn("the load of the processors is not known", "error", err)
	}
	l.fault = fault
}

// Begin implements agent.Loads: the next sample reports all members.
func (l *loads) Begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reporter.Afresh()
	clear(l.pending)
}

// Changed implements agent.Loads.
func (l *loads) Changed() <-chan struct{} { return l.changed }

// Take implements agent.Loads.
func (l *loads) Take() []load.Member {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]load.Member, 0, len(l.pending))
	for i := range l.members {
		if m, waits := l.pending[l.members[i].key]; waits {
			out = append(out, m)
		}
	}
	clear(l.pending)
	return out
}
