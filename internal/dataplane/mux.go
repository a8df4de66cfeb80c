package dataplane

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/shuntlb/shunt/internal/lb"
)

// Mux is the mux's data plane: the XDP program and its tables.
//
// Lock order: applying or sweeping, then mu.
type Mux struct {
	objects muxObjects
	reasons []string             // by number
	spec    *ebpf.CollectionSpec // the objects were loaded from it
	memory  *muxMemory
	grace   *grace
	options MuxOptions
	lock    io.Closer // of the pins; nil: there are none

	// applying is held for a whole Apply, the wait for readers included.
	applying sync.Mutex
	waiting  []*change // published, not released: the wait for readers failed
	// published is when the last Apply had stored its last word, in ns since 1970.
	published atomic.Int64

	// sweeping is held for a whole Sweep.
	sweeping  sync.Mutex
	tickShift uint32

	mu        sync.Mutex
	tables    *muxTables
	flowsUsed uint64            // at the last sweep
	others    map[int]link.Link // of further interfaces
	link      link.Link         // nil when not attached
	// former are tables whose program runs until an Apply has filled these; nil when these are the ones.
	former *formerTables
	// ending are tables that these took over from, until all of it is done.
	ending *formerTables
	watch  *Watch // nil when nobody watches
}

var _ MuxTables = (*Mux)(nil)

// Program is the loaded program, for runs without an interface.
func (m *Mux) Program() *ebpf.Program { return m.objects.Mux }

// Apply implements MuxTables. It returns when no packet can be handled by the old state any more.
func (m *Mux) Apply(s MuxState) error {
	m.applying.Lock()
	defer m.applying.Unlock()
	m.mu.Lock()
	if err := m.settleLocked(); err != nil {
		m.mu.Unlock()
		return fmt.Errorf("apply tables: %w", err)
	}
	c, err := m.tables.stage(s)
	if err == nil {
		err = m.coverAll()
	}
	if err != nil {
		if c != nil {
			c.undo()
		}
		m.mu.Unlock()
		return fmt.Errorf("apply tables: %w", err)
	}
	c.publish()
	coverErr := m.coverVIPs()
	m.published.Store(time.Now().UnixNano())
	if m.former != nil && coverErr == nil {
		coverErr = m.migrateLocked()
	}
	m.mu.Unlock()
	if c.needsGrace() {
		m.waiting = append(m.waiting, c)
	}
	if len(m.waiting) == 0 {
		return coverErr
	}
	if err := m.grace.wait(); err != nil {
		return fmt.Errorf("apply tables: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.waiting {
		c.release()
	}
	m.waiting = nil
	return coverErr
}

// Published is when the last Apply had stored its last word: packets then met the new state. Apply returns later, when none
// can be with the old one any more.
func (m *Mux) Published() time.Time { return time.Unix(0, m.published.Load()) }

// SetAlive implements MuxTables.
func (m *Mux) SetAlive(flips []MemberAlive) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var e *muxEntry
	for i, f := range flips {
		// Flips of one endpoint come one after the other: it is looked up once.
		if i == 0 || f.Endpoint != flips[i-1].Endpoint {
			e = m.tables.entries[f.Endpoint]
		}
		if e == nil || int(f.Member) >= e.count {
			continue
		}
		word := m.tables.word(e, f.Member)
		value := load(word)
		if value&memberPresent == 0 {
			continue
		}
		if f.Alive {
			store(word, value|memberAlive)
		} else {
			store(word, value&^memberAlive)
		}
	}
}

// Alive implements MuxTables.
func (m *Mux) Alive(e lb.EndpointKey, member uint16) (alive, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.former != nil {
		alive, known = m.former.alive[MemberKey{e, member}]
		return alive, known
	}
	entry, ok := m.tables.entries[e]
	if !ok || entry.members.get(member) == nil {
		return false, false
	}
	return load(m.tables.word(entry, member))&memberAlive != 0, true
}

// SetNextHops implements MuxTables.
func (m *Mux) SetNextHops(hops map[netip.Addr]NextHop) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &m.tables.hops
	t.wanted = maps.Clone(hops)
	t.refreshDevices()
	var errs []error
	for _, b := range m.tables.records.byIndex {
		if b == nil {
			continue
		}
		if err := t.resolve(b); err != nil {
			errs = append(errs, fmt.Errorf("set next hops: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Trace implements MuxTables.
func (m *Mux) Trace(p Packet) (Trace, error) {
	tick, err := m.now()
	if err != nil {
		return Trace{}, fmt.Errorf("trace: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return tracePacket(p, tablesView{m.tables, tick})
}

// Close implements MuxTables.
func (m *Mux) Close() error {
	m.mu.Lock()
	watch := m.watch
	m.mu.Unlock()
	if watch != nil {
		watch.Close() //nolint:errcheck // the next start puts its own program in place
	}
	if m.link != nil {
		m.link.Close()
	}
	for _, l := range m.others {
		l.Close()
	}
	for _, f := range []*formerTables{m.former, m.ending} {
		if f != nil {
			f.close()
		}
	}
	if m.memory != nil {
		m.memory.close()
	}
	if m.grace != nil {
		m.grace.close()
	}
	err := m.objects.Close()
	if m.lock != nil {
		m.lock.Close()
	}
	return err
}
