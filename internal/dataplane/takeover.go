package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// TakeOver says what another build of shunt finds when it starts where tables are pinned.
type TakeOver struct {
	// Pinned is the ABI version of the pinned tables; 0: there are none, and any build starts with empty ones.
	Pinned uint32
	// Program is the newest ABI version that the build reads.
	Program uint32
}

// Agents that differ from each other where the ABI version is the same: a build without the constant reads cookies under shuffled keys as those of
// other members.
const (
	muxShuffleConstant  = "COOKIE_SHUFFLED_SHIFT"
	hostShuffleConstant = "HOST_COOKIE_SHUFFLED0"
)

// takeOverKind is how tables of a role are told apart.
type takeOverKind struct {
	// program and configs are a program and a map that only objects of the role have; configs begins with the ABI version.
	program, configs string
	// version and shuffle are names of constants of its object.
	version, shuffle string
	// cookies is the map of cookie keys, shuffled finds whether a record of it has keys with shuffled members.
	cookies  string
	shuffled func(record []byte) bool
	// cure is what an operator does where the build cannot take over.
	cure string
}

var muxTakeOver = takeOverKind{
	program: muxProgMux, configs: muxMapConfigs, version: "LIMIT_ABI_VERSION", shuffle: muxShuffleConstant, cookies: muxMapCookieSets,
	shuffled: func(record []byte) bool {
		var r muxCookieSet
		if _, err := binary.Decode(record, binary.NativeEndian, &r); err != nil {
			return false
		}
		return r.Live>>muxCookieLiveCOOKIE_SHUFFLED_SHIFT != 0
	},
	cure: "drain this mux and take its tables down with shunt mux --stop of the build that runs, then start the other one",
}

var hostTakeOver = takeOverKind{
	program: hostProgHostIn, configs: hostMapHostConfigs, version: "LIMIT_HOST_ABI_VERSION", shuffle: hostShuffleConstant, cookies: hostMapCookieKeys,
	shuffled: func(record []byte) bool {
		var r hostHostCookieKeys
		if _, err := binary.Decode(record, binary.NativeEndian, &r); err != nil {
			return false
		}
		return r.Use&uint32(hostHostCookieUseHOST_COOKIE_SHUFFLED0|hostHostCookieUseHOST_COOKIE_SHUFFLED1) != 0
	},
	cure: "drain the backends of this host and take its tables down with shunt host --stop of the build that runs, then start the other one",
}

// CheckMuxProgram returns nil if the shunt in a file, of any build, can take over the tables that muxes have pinned in dir. It changes nothing, and
// does not run the program: it reads the BPF objects that the file carries.
func CheckMuxProgram(file, dir string) (TakeOver, error) {
	return muxTakeOver.check(file, []string{filepath.Join(dir, muxPinTables), filepath.Join(dir, muxPinNext)})
}

// CheckHostProgram returns nil if the shunt in a file, of any build, can take over the tables that a host has pinned in dir, as CheckMuxProgram.
func CheckHostProgram(file, dir string) (TakeOver, error) {
	return hostTakeOver.check(file, []string{dir})
}

func (k *takeOverKind) check(file string, dirs []string) (TakeOver, error) {
	program, constants, err := k.read(file)
	if err != nil {
		return TakeOver{}, err
	}
	out := TakeOver{Program: uint32(constants[k.version])}
	for _, dir := range dirs {
		pinned, err := openPinned(dir, program)
		if err != nil {
			return out, err
		}
		err = k.compare(file, dir, &out, program, constants, pinned)
		closeMaps(pinned)
		if err != nil {
			return out, fmt.Errorf("%w: %s", err, k.cure)
		}
	}
	return out, nil
}

// openPinned opens those maps of a program that are pinned in a directory.
func openPinned(dir string, program *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pin directory: %w", err)
	}
	var names []string
	for _, e := range entries {
		if program.Maps[e.Name()] != nil {
			names = append(names, e.Name())
		}
	}
	return openMaps(dir, names)
}

// compare returns why a program cannot take over pinned tables.
func (k *takeOverKind) compare(file, dir string, out *TakeOver, program *ebpf.CollectionSpec, constants map[string]uint64, pinned map[string]*ebpf.Map) error {
	configs := pinned[k.configs]
	if configs == nil {
		return nil
	}
	version, err := muxABI(configs)
	if err != nil {
		return fmt.Errorf("read ABI version of pins in %s: %w", dir, err)
	}
	out.Pinned = max(out.Pinned, version)
	if version > out.Program {
		return fmt.Errorf("pins in %s have ABI version %d, %s has %d", dir, version, file, out.Program)
	}
	for name, m := range pinned {
		spec := program.Maps[name]
		if version == out.Program && spec != nil && (spec.KeySize != m.KeySize() || spec.ValueSize != m.ValueSize()) {
			return fmt.Errorf("table %s in %s has %d bytes a key and %d a value, %s has %d and %d", name, dir, m.KeySize(), m.ValueSize(), file, spec.KeySize, spec.ValueSize)
		}
	}
	if _, knows := constants[k.shuffle]; knows || pinned[k.cookies] == nil {
		return nil
	}
	for i := range pinned[k.cookies].MaxEntries() {
		record, err := pinned[k.cookies].LookupBytes(i)
		if err != nil {
			return fmt.Errorf("read table %s in %s: %w", k.cookies, dir, err)
		}
		if k.shuffled(record) {
			return fmt.Errorf("cookies here name members in shuffled order, which %s would take for other members: their connections would break", file)
		}
	}
	return nil
}

// read finds the object of the role among those that a program carries, with the constants of its BTF.
func (k *takeOverKind) read(file string) (*ebpf.CollectionSpec, map[string]uint64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("read program: %w", err)
	}
	for at := range bpfObjects(data) {
		spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(data[at:]))
		if err != nil || spec.Types == nil || spec.Programs[k.program] == nil || spec.Maps[k.configs] == nil {
			continue
		}
		constants := map[string]uint64{}
		for t, err := range spec.Types.All() {
			if err != nil {
				return nil, nil, fmt.Errorf("read BTF of %s: %w", file, err)
			}
			if e, ok := t.(*btf.Enum); ok {
				for _, v := range e.Values {
					constants[v.Name] = v.Value
				}
			}
		}
		if constants[k.version] != 0 {
			return spec, constants, nil
		}
	}
	return nil, nil, fmt.Errorf("read program: %s: carries no BPF program %s: must be a shunt", file, k.program)
}

// bpfObjects yields where relocatable ELF objects for BPF begin in a file that carries some.
func bpfObjects(data []byte) func(yield func(int) bool) {
	const (
		relocatable = 1   // ET_REL
		machine     = 247 // EM_BPF
	)
	magic := []byte("\x7fELF\x02\x01\x01") // 64 bits, least significant byte first
	return func(yield func(int) bool) {
		for at := 0; ; at++ {
			next := bytes.Index(data[at:], magic)
			if next < 0 {
				return
			}
			if at += next; len(data)-at < 64 {
				return
			}
			header := data[at:]
			if binary.LittleEndian.Uint16(header[16:]) == relocatable && binary.LittleEndian.Uint16(header[18:]) == machine && !yield(at) {
				return
			}
		}
	}
}
