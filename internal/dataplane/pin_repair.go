package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Repairs of pins at the start of an agent: others removed them, or put other objects in their place, while none ran. The attached programs hold
// the tables, so that their pins can be restored from the programs.

// kernelName is the name of a map that the kernel keeps: its first bytes.
func kernelName(name string) string { return name[:min(len(name), unix.BPF_OBJ_NAME_LEN-1)] }

// hasName reports whether a map has this name. Tables of other versions have it too, those of strangers do not.
func hasName(m *ebpf.Map, name string) bool {
	info, err := m.Info()
	return err == nil && info.Name == kernelName(name)
}

// linkMaps opens the maps that a link's program works with, those of these names. Without CAP_SYS_ADMIN, which the service units do not have, the kernel
// shows none.
func linkMaps(l link.Link, names []string) (map[string]*ebpf.Map, error) {
	info, err := l.Info()
	if err != nil {
		return nil, fmt.Errorf("read link: %w", err)
	}
	p, err := ebpf.NewProgramFromID(info.Program)
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open program %d: %w", info.Program, err)
	}
	defer p.Close()
	program, err := p.Info()
	if err != nil {
		return nil, fmt.Errorf("read program %d: %w", info.Program, err)
	}
	ids, _ := program.MapIDs()
	found := map[string]*ebpf.Map{}
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			closeMaps(found)
			return nil, fmt.Errorf("open map %d: %w", id, err)
		}
		i := slices.IndexFunc(names, func(n string) bool { return hasName(m, n) })
		if i < 0 || found[names[i]] != nil {
			m.Close()
			continue
		}
		found[names[i]] = m
	}
	return found, nil
}

// repairMuxPins repairs the pins in a mux's directory. names are those of the tables. Objects of others are put aside from the paths of pins; tables
// are pinned again where the attached program has them. If no program is attached, tables are removed of which a part is lost, because
// nothing works with them: the mux begins with empty ones.
func repairMuxPins(dir string, names []string, log *slog.Logger) error {
	attached, err := repairMuxLinks(dir, log)
	if err != nil {
		return err
	}
	for _, set := range muxSets {
		p, err := openPin(filepath.Join(dir, set))
		if err != nil {
			return err
		}
		p.close()
		if p.words != "" && !p.isDirectory() {
			if err := putAside(dir, filepath.Join(dir, set), p.words, log); err != nil {
				return err
			}
		}
	}
	if attached != nil {
		defer attached.Close()
		return restoreMuxTables(dir, attached, names, log)
	}
	for _, set := range muxSets {
		foreign, err := foreignTables(filepath.Join(dir, set), names)
		if err != nil || len(foreign) == 0 {
			if err != nil {
				return err
			}
			continue
		}
		log.Error("tables are lost: other objects were at the paths of pins, and no program is attached", "tables", filepath.Join(dir, set), "pins", pinWords(foreign))
		if err := removeSet(dir, set, log); err != nil {
			return err
		}
	}
	return nil
}

// repairMuxLinks puts objects of others aside from the paths of links' pins, and returns a pinned link of a mux's program; nil: there is none.
func repairMuxLinks(dir string, log *slog.Logger) (attached link.Link, err error) {
	others, err := otherPins(dir)
	if err != nil {
		return nil, err
	}
	pins := []string{muxPinLink}
	for _, ifindex := range others {
		pins = append(pins, filepath.Base(otherPin(dir, ifindex)))
	}
	for _, pin := range pins {
		l, foreign, err := openOwnLink(filepath.Join(dir, pin), muxLinkPrograms...)
		if err == nil && foreign != "" {
			err = putAside(dir, filepath.Join(dir, pin), foreign, log)
		}
		if err != nil {
			return nil, err
		}
		if l == nil {
			continue
		}
		if attached == nil && xdpIfindex(l) != 0 {
			attached = l
			continue
		}
		l.Close()
	}
	return attached, nil
}

// restoreMuxTables pins the tables of the attached program again where their pins are missing or other objects.
func restoreMuxTables(dir string, attached link.Link, names []string, log *slog.Logger) error {
	tables, err := linkMaps(attached, names)
	if err != nil {
		return err
	}
	defer closeMaps(tables)
	if len(tables) == 0 {
		return nil
	}
	// The set that has most of them is the program's: in a migration there are two.
	set, least := muxPinTables, len(tables)
	var bad []badPin
	for _, s := range []string{muxPinTables, muxPinNext, muxPinOld} {
		b, err := badPins(filepath.Join(dir, s), tables, nil)
		if err != nil {
			return err
		}
		if len(b) < least || s == muxPinTables {
			set, least, bad = s, len(b), b
		}
	}
	if len(bad) == 0 {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, set), 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	if err := repairPins(dir, filepath.Join(dir, set), tables, bad, log); err != nil {
		return err
	}
	log.Warn("restored pins from the attached program", "pins", pinWords(bad))
	return nil
}

// foreignTables returns the tables at whose paths in dir other objects are.
func foreignTables(dir string, names []string) (foreign []badPin, err error) {
	for _, n := range names {
		p, err := openPin(filepath.Join(dir, n))
		if err != nil {
			return nil, err
		}
		if m, ok := p.object.(*ebpf.Map); p.words != "" && (!ok || !hasName(m, n)) {
			foreign = append(foreign, badPin{n, p.words})
		}
		p.close()
	}
	slices.SortFunc(foreign, func(a, b badPin) int { return strings.Compare(a.name, b.name) })
	return foreign, nil
}

// repairHostPins repairs the pins in a host's directory like repairMuxPins. A table that no attached program has is made anew, as one whose pin is
// missing.
func repairHostPins(dir string, spec *ebpf.CollectionSpec, log *slog.Logger) error {
	tables := map[string]*ebpf.MapSpec{}
	for name, m := range spec.Maps {
		if m.Pinning == ebpf.PinByName {
			tables[name] = m
		}
	}
	co, err := loadHostCO()
	if err != nil {
		return fmt.Errorf("read handshake object: %w", err)
	}
	for _, name := range []string{hostCOMapCoEndpoints, hostCOMapCoReasons, hostCOMapCoSetups} {
		tables[name] = co.Maps[name]
	}
	held, err := repairHostLinks(dir, tables, log)
	if err != nil {
		return err
	}
	defer closeMaps(held)
	for _, former := range append([]string{hostMapBindingsOne}, formerFlowPins...) {
		p, err := openPin(filepath.Join(dir, former))
		if err != nil {
			return err
		}
		if m, ok := p.object.(*ebpf.Map); p.words != "" && (!ok || !hasName(m, formerTable(former))) {
			err = putAside(dir, filepath.Join(dir, former), p.words, log)
		}
		p.close()
		if err != nil {
			return err
		}
	}
	// A missing pin may be one that the former build did not have.
	var config hostHostConfig
	present := held[hostMapHostConfigs] != nil && held[hostMapHostConfigs].Lookup(uint32(0), &config) == nil &&
		config.AbiVersion == uint32(hostHostLimitLIMIT_HOST_ABI_VERSION)
	var bad []badPin
	for name, spec := range tables {
		foreign, err := foreignTables(dir, []string{name})
		if err != nil {
			return err
		}
		m := held[name]
		switch {
		case m == nil && len(foreign) > 0:
			err = putAside(dir, filepath.Join(dir, name), foreign[0].found, log)
		case m != nil && len(foreign) > 0:
			bad = append(bad, foreign...)
		case m != nil:
			var other []badPin
			other, err = badPins(dir, map[string]*ebpf.Map{name: m}, nil)
			flows := name == hostMapFlowTags || name == hostMapFlowRecords || name == hostMapFlowCookies
			if len(other) > 0 && (other[0].found != "" || present && (flows || spec.Compatible(m) == nil)) {
				bad = append(bad, other...)
			}
		}
		if err != nil {
			return err
		}
	}
	if len(bad) == 0 {
		return nil
	}
	if err := repairPins(dir, dir, held, bad, log); err != nil {
		return err
	}
	slices.SortFunc(bad, func(a, b badPin) int { return strings.Compare(a.name, b.name) })
	log.Warn("restored pins from the attached programs", "pins", pinWords(bad))
	return nil
}

// repairHostLinks puts objects of others aside from the paths of links' pins. It returns the tables that the attached programs work with, but for
// those of which two are in use: a flow table of another size is being filled, or its agent ended meanwhile.
func repairHostLinks(dir string, tables map[string]*ebpf.MapSpec, log *slog.Logger) (held map[string]*ebpf.Map, err error) {
	held = map[string]*ebpf.Map{}
	defer func() {
		if err != nil {
			closeMaps(held)
		}
	}()
	programs := map[string]string{coLinkPin: hostCOProgHostCo}
	for _, hook := range hostHooks {
		programs[hook.pin] = hook.program
	}
	serve, err := servePins(dir)
	if err != nil {
		return held, err
	}
	for _, pin := range serve {
		programs[filepath.Base(pin)] = hostProgHostServe
	}
	var names []string
	for name := range tables {
		names = append(names, name)
	}
	twice := map[string]bool{}
	for pin, program := range programs {
		l, foreign, err := openOwnLink(filepath.Join(dir, pin), program)
		if err == nil && foreign != "" {
			err = putAside(dir, filepath.Join(dir, pin), foreign, log)
		}
		if err != nil {
			return held, err
		}
		if l == nil {
			continue
		}
		maps, err := linkMaps(l, names)
		l.Close()
		if err != nil {
			return held, err
		}
		for name, m := range maps {
			switch {
			case held[name] == nil:
				held[name] = m
				continue
			case !isMap(m, held[name]):
				twice[name] = true
			}
			m.Close()
		}
	}
	for _, name := range []string{hostPinFormerTags, hostPinFormerRecords, hostPinFormerCookies} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			twice[hostMapFlowTags], twice[hostMapFlowRecords], twice[hostMapFlowCookies] = true, true, true
		}
	}
	for name := range twice {
		if m := held[name]; m != nil {
			m.Close()
			delete(held, name)
		}
	}
	return held, nil
}
