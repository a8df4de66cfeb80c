package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// pinMaps pins maps under dir/name all at once: into a temporary directory that is then renamed. What a process that
// died in between left behind is removed. Names on a bpf file system have no dots.
func pinMaps(dir, name string, maps map[string]*ebpf.Map, log *slog.Logger) error {
	temporary, final := filepath.Join(dir, name+"_new"), filepath.Join(dir, name)
	if err := removeSet(dir, name+"_new", log); err != nil {
		return err
	}
	if err := os.Mkdir(temporary, 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	for n, m := range maps {
		if err := pinMap(m, filepath.Join(temporary, n)); err != nil {
			return fmt.Errorf("pin table %s: %w", n, err)
		}
	}
	if err := os.Rename(temporary, final); err != nil {
		return fmt.Errorf("pin tables: %w", err)
	}
	return nil
}

// pinMap pins a map at path, which must not exist. It pins a clone, because Map.Pin remembers the path of an earlier call: it does nothing
// when the path is the same, and moves the earlier pin when it differs, whether or not the pin still exists there.
func pinMap(m *ebpf.Map, path string) error {
	clone, err := m.Clone()
	if err != nil {
		return err
	}
	defer clone.Close()
	return clone.Pin(path)
}

// openMaps opens the pinned maps of these names; nil when there is no such directory.
func openMaps(dir string, names []string) (map[string]*ebpf.Map, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	maps := make(map[string]*ebpf.Map, len(names))
	for _, n := range names {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, n), nil)
		if err != nil {
			closeMaps(maps)
			return nil, fmt.Errorf("open pinned table %s: %w", n, err)
		}
		maps[n] = m
	}
	return maps, nil
}

func closeMaps(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}

// hostOrder32 reads the first word of a record.
func hostOrder32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
