package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Tables that cannot be adopted are migrated: new ones are filled beside them from the first plan and from what is taken
// over, then the program is replaced in one step. Which set counts after a crash is what the attached program works with:
//
//	pinned       tables = old, tables_next = new; the old program runs: tables_next is removed at the next start
//	switched     the new program runs: the next start carries the counters over and renames
//	renamed      tables_old = old, tables_next = new, then tables = new: likewise
//
// Until the last step one whole set, with the program that works with it, is pinned.
const (
	muxPinNext = muxPinTables + "_next"
	muxPinOld  = muxPinTables + "_old"
)

// muxSets are all directories that may hold tables, the temporary ones of pinMaps among them.
var muxSets = []string{muxPinTables, muxPinNext, muxPinOld, muxPinTables + "_new", muxPinNext + "_new"}

// sets is what a start finds.
type sets struct {
	// current is the set that the attached program works with, empty: none. former is the one it replaced, empty: none.
	current, former string
}

// findSets finds out which set counts, and removes what nobody needs any more.
func findSets(dir string, log *slog.Logger) (sets, error) {
	has := map[string]bool{}
	for _, name := range muxSets {
		_, err := os.Stat(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return sets{}, fmt.Errorf("look at pins: %w", err)
		}
		has[name] = err == nil
	}
	var found sets
	switch next, err := programUses(dir, muxPinNext); {
	case err != nil:
		return sets{}, err
	case has[muxPinNext] && (next || !has[muxPinTables]):
		found.current = muxPinNext
		for _, name := range []string{muxPinOld, muxPinTables} {
			if has[name] {
				found.former = name
			}
		}
	case has[muxPinTables]:
		found.current = muxPinTables
	}
	for name, there := range has {
		if there && name != found.current && name != found.former {
			if err := removeSet(dir, name, log); err != nil {
				return sets{}, err
			}
		}
	}
	return found, nil
}

// programUses says whether the program behind the pinned link works with a set.
func programUses(dir, set string) (bool, error) {
	p, err := openPin(filepath.Join(dir, set, muxMapConfigs))
	if err != nil {
		return false, fmt.Errorf("open pinned table %s: %w", muxMapConfigs, err)
	}
	defer p.close()
	config, ok := p.object.(*ebpf.Map)
	if !ok || !hasName(config, muxMapConfigs) {
		return false, nil
	}
	l, err := link.LoadPinnedLink(filepath.Join(dir, muxPinLink), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open pinned XDP link: %w", err)
	}
	defer l.Close()
	uses, err := linkUses(l, config)
	if errors.Is(err, fs.ErrPermission) {
		// Without CAP_SYS_ADMIN, which the service units do not have, the kernel does not show it. The set is whole: it was filled before its
		// directory got this name. If the former program runs still, flows that began since then go by ring and repair.
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("find the tables of the attached program: %w", err)
	}
	return uses, nil
}

func linkUses(l link.Link, table *ebpf.Map) (bool, error) {
	mapInfo, err := table.Info()
	if err != nil {
		return false, err
	}
	want, _ := mapInfo.ID()
	linkInfo, err := l.Info()
	if err != nil {
		return false, err
	}
	program, err := ebpf.NewProgramFromID(linkInfo.Program)
	if err != nil {
		return false, err
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return false, err
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		if id == want {
			return true, nil
		}
	}
	return false, nil
}

// migrateLocked replaces the attached program by this one, whose tables are filled. m.mu is held. On error before the program
// is replaced the old one goes on with all it had.
func (m *Mux) migrateLocked() error {
	dir := m.options.BPFFS
	if err := m.reached("filled"); err != nil {
		return err
	}
	if err := removeSet(dir, muxPinNext, m.options.log()); err != nil {
		return err
	}
	if err := pinMaps(dir, muxPinNext, m.objects.byName(), m.options.log()); err != nil {
		return err
	}
	if err := m.reached("pinned"); err != nil {
		return err
	}
	m.tables.carryFlows(m.former) // most of them; settle takes what comes until then
	if _, err := m.carrySessions(m.former); err != nil {
		return err
	}
	if err := m.attachFirst(m.options.Ifindex); err != nil {
		return errors.Join(err, removeSet(dir, muxPinNext, m.options.log()))
	}
	m.former, m.ending = nil, m.former
	if err := m.reached("first"); err != nil {
		return err
	}
	if err := m.attachOthers(); err != nil {
		// The first one works with these tables already: there is no way back, and Tend tries again.
		m.options.log().Error("an interface keeps the program before", "error", err)
	}
	m.idle.Store(false)
	if err := m.reached("switched"); err != nil {
		return err
	}
	return m.settleLocked()
}

// settleLocked ends a migration: the former program has let go, its counters and the flows that came last are carried
// over, and its pins go. What failed is done again by the next call; before it no other change may reach the tables.
func (m *Mux) settleLocked() error {
	if m.ending == nil {
		return nil
	}
	if err := m.grace.wait(); err != nil {
		return err
	}
	c, err := m.ending.count()
	if err != nil {
		return err
	}
	m.tables.carry(c)
	flows := "not carried over: those whose backend is not the ring's choice may move"
	if m.ending.flows != nil {
		flows = m.tables.carryFlows(m.ending).String()
	}
	dropped, err := m.carrySessions(m.ending)
	if err != nil {
		return err
	}
	if err := m.reached("counted"); err != nil {
		return err
	}
	if err := m.moveSets(); err != nil {
		return err
	}
	m.options.log().Info("migrated the mux's tables", "from", m.ending.words, "counters", "carried over", "flows", flows, "sessions_lost", dropped)
	m.ending.close()
	m.ending = nil
	return nil
}

// moveSets makes the set beside the others the one that is pinned, and removes those; it goes on where it was cut short.
func (m *Mux) moveSets() error {
	tables, next, old := m.set(muxPinTables), m.set(muxPinNext), m.set(muxPinOld)
	if _, err := os.Stat(next); err == nil {
		if _, err := os.Stat(tables); err == nil {
			if err := removeSet(m.options.BPFFS, muxPinOld, m.options.log()); err != nil {
				return err
			}
			if err := os.Rename(tables, old); err != nil {
				return fmt.Errorf("put old pins aside: %w", err)
			}
		}
		if err := m.reached("renamed"); err != nil {
			return err
		}
		if err := os.Rename(next, tables); err != nil {
			return fmt.Errorf("pin tables: %w", err)
		}
	}
	if err := m.reached("moved"); err != nil {
		return err
	}
	return removeSet(m.options.BPFFS, muxPinOld, m.options.log())
}

// set is the directory of a set.
func (m *Mux) set(name string) string { return filepath.Join(m.options.BPFFS, name) }

// reached lets tests end a migration at each step.
func (m *Mux) reached(step string) error {
	if m.options.testStep == nil {
		return nil
	}
	return m.options.testStep(step)
}
