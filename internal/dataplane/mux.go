package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
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
	bss     *ebpf.Map            // the program's variables
	spec    *ebpf.CollectionSpec // the objects were loaded from it
	memory  *muxMemory
	probes  *Probes
	grace   *grace
	options MuxOptions
	lock    *pinLock // of the pins; nil: there are none
	// pinsSeen are the files of pins that are good, by path.
	pinsSeen map[string]fs.FileInfo

	// applying is held for a whole Apply or Change.
	applying sync.Mutex
	// published is when the last Apply or Change had stored its last word, in ns since 1970.
	published atomic.Int64
	// idle: a former program forwards, and packets do not meet these tables yet.
	idle atomic.Bool

	// sweeping is held for a whole Sweep.
	sweeping  sync.Mutex
	tickShift uint32

	mu        sync.Mutex
	tables    *muxTables
	readers   readers
	flowsUsed uint64                 // at the last sweep
	natUsed   uint64                 // likewise
	natAlone  map[muxNatKey]natAlone // with sweeping: ports that the last sweep found without a session
	others    map[int]link.Link      // of further interfaces
	link      link.Link              // nil when not attached
	// connections are the records of connections.
	connections *connectionTable
	// former are tables whose program runs until an Apply has filled these; nil when these are the ones.
	former *formerTables
	// ending are tables that these took over from, until all of it is done.
	ending *formerTables
	watch  *Watch // nil when nobody watches
}

var _ MuxTables = (*Mux)(nil)

// Program is the loaded program, for runs without an interface.
func (m *Mux) Program() *ebpf.Program { return m.objects.Mux }

// Apply implements MuxTables. It returns when its last word is stored: packets meet the new state from then on. What it gave up
// is used again when no packet can be with the old state any more; a state that has no room beside that waits for it.
func (m *Mux) Apply(s MuxState) error {
	return m.follow(func(crowded bool) (*change, error) { return m.tables.stage(s, crowded) })
}

// Change implements MuxTables, as Apply does.
func (m *Mux) Change(s MuxChange) error {
	return m.follow(func(crowded bool) (*change, error) { return m.tables.stageChange(s, crowded) })
}

// follow publishes what is staged.
func (m *Mux) follow(stage func(crowded bool) (*change, error)) error {
	m.applying.Lock()
	defer m.applying.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	c, err := m.takeLocked(stage)
	if err != nil {
		return fmt.Errorf("apply tables: %w", err)
	}
	c.publish()
	var coverErr error
	if c.moves {
		coverErr = m.coverVIPs()
	}
	m.published.Store(time.Now().UnixNano())
	if m.former != nil && coverErr == nil {
		coverErr = m.migrateLocked()
	}
	m.leaveLocked(c)
	return coverErr
}

// takeLocked stages a change, when need be after what others gave up is free. applying is held.
func (m *Mux) takeLocked(stage func(crowded bool) (*change, error)) (*change, error) {
	if err := m.settleLocked(); err != nil {
		return nil, err
	}
	if err := m.awaitLocked(func(c *change) bool { return c.first }); err != nil {
		return nil, err
	}
	c, err := m.stageLocked(stage)
	if err != nil && len(m.readers.waiting) > 0 {
		if err := m.awaitLocked(func(*change) bool { return true }); err != nil {
			return nil, err
		}
		c, err = m.stageLocked(stage)
	}
	return c, err
}

// leaveLocked has what a published change gave up freed, sooner or later.
func (m *Mux) leaveLocked(c *change) {
	if len(c.released) > 0 {
		m.readers.waiting = append(m.readers.waiting, c)
		m.releaseLocked()
	}
}

// stageLocked stages a state and lets every packet look for its VIP while VIPs come and go. On error nothing has changed.
func (m *Mux) stageLocked(stage func(crowded bool) (*change, error)) (*change, error) {
	c, err := stage(len(m.readers.waiting) > 0)
	if err != nil || !c.moves {
		return c, err
	}
	if err := m.coverAll(); err != nil {
		c.undo()
		return nil, err
	}
	return c, nil
}

// Published is when the last Apply or Change had stored its last word.
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
	m.readers.working.Wait()
	if m.probes != nil {
		m.probes.close()
	}
	if m.memory != nil {
		m.memory.close()
	}
	if m.grace != nil {
		m.grace.close()
	}
	err := errors.Join(m.objects.Close(), m.bss.Close())
	if m.lock != nil {
		m.lock.Close()
	}
	return err
}
