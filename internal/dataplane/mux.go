package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/shuntlb/shunt/internal/lb"
)

// Mux is the mux's data plane: the XDP program and its tables.
//
// Lock order: applying, then mu.
type Mux struct {
	objects muxObjects
	reasons []string // by number
	memory  *muxMemory
	grace   *grace
	options MuxOptions

	// applying is held for a whole Apply, the wait for readers included.
	applying sync.Mutex
	waiting  []*change // published, not released: the wait for readers failed

	mu     sync.Mutex
	tables *muxTables
	link   link.Link // nil when not attached
}

var _ MuxTables = (*Mux)(nil)

// Program is the loaded program, for runs without an interface.
func (m *Mux) Program() *ebpf.Program { return m.objects.Mux }

// Apply implements MuxTables. It returns when no packet can be handled by the old state any more.
func (m *Mux) Apply(s MuxState) error {
	m.applying.Lock()
	defer m.applying.Unlock()
	m.mu.Lock()
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

// SetAlive implements MuxTables.
func (m *Mux) SetAlive(flips []MemberAlive) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range flips {
		e, ok := m.tables.entries[f.Endpoint]
		if !ok || e.members[f.Member] == nil {
			continue
		}
		word := m.tables.word(e, f.Member)
		if f.Alive {
			store(word, load(word)|memberAlive)
		} else {
			store(word, load(word)&^memberAlive)
		}
	}
}

// Alive implements MuxTables.
func (m *Mux) Alive(e lb.EndpointKey, member uint16) (alive, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry, ok := m.tables.entries[e]
	if !ok || entry.members[member] == nil {
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
	for _, b := range m.tables.byIndex {
		if err := t.resolve(b); err != nil {
			errs = append(errs, fmt.Errorf("set next hops: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Trace implements MuxTables.
func (m *Mux) Trace(p Packet) (Trace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return tracePacket(p, tablesView{m.tables})
}

// Close implements MuxTables.
func (m *Mux) Close() error {
	if m.link != nil {
		m.link.Close()
	}
	if m.memory != nil {
		m.memory.close()
	}
	if m.grace != nil {
		m.grace.close()
	}
	return m.objects.Close()
}
