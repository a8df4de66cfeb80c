package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"

	"golang.org/x/sys/unix"
)

// Root holds one directory per lab. Every part of a lab can be found from its directory.
const Root = "/run/shunt/lab"

// bpfRoot holds the pins of each lab's nodes: NAME/NODE.
const (
	bpfMount = "/sys/fs/bpf"
	bpfRoot  = bpfMount + "/shunt-lab"
)

// state is the stored state of a lab. It is written before the first namespace is made, so that
// every part can be found later, and again when the lab is complete.
type state struct {
	Topology Topology `json:"topology"`
	// FabricOnly labs run no manager and no agents.
	FabricOnly bool `json:"fabric_only"`
	// Complete means that Up finished.
	Complete bool `json:"complete"`
}

// Dir returns the directory of a lab.
func Dir(name string) string { return filepath.Join(Root, name) }

func statePath(name string) string { return filepath.Join(Dir(name), "state.json") }

func (s state) save() error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write state of lab %s: %w", s.Topology.Name, err)
	}
	return writeFile(statePath(s.Topology.Name), b, 0o644)
}

func loadState(name string) (state, error) {
	var s state
	b, err := os.ReadFile(statePath(name))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("read %s: %w", statePath(name), err)
	}
	return s, nil
}

// writeFile replaces a file atomically: readers see the old or the new content.
func writeFile(path string, content []byte, mode os.FileMode) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, content, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// makeOpenDir makes a lab's directory, or one in it, that daemons with other users can enter,
// whatever the umask is. Secrets have their own modes.
func makeOpenDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for ; len(dir) >= len(filepath.Dir(Root)); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Names lists all labs, including incomplete ones.
func Names() ([]string, error) {
	entries, err := os.ReadDir(Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && CheckName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names, nil
}

// lock prevents two commands from building or removing the same lab at the same time. It is
// released when the process ends. unlock with forget also removes the lock's file.
func lock(name string) (unlock func(forget bool), err error) {
	path := filepath.Join(Root, "."+name+".lock")
	for {
		if err := os.MkdirAll(Root, 0o755); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, fs.ErrNotExist) { // Root was removed meanwhile
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lock lab %s: %w", name, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("lab %s: another `shunt lab` command is building or removing it; wait for it, then try again", name)
			}
			return nil, fmt.Errorf("lock lab %s: %w", name, err)
		}
		// A file that its last owner removed meanwhile locks nothing.
		if mine, err := f.Stat(); err == nil {
			if there, err := os.Stat(path); err == nil && os.SameFile(mine, there) {
				return func(forget bool) {
					if forget {
						_ = os.Remove(path)
						_ = os.Remove(Root) // stays while there are other labs
						_ = os.Remove(filepath.Dir(Root))
					}
					f.Close()
				}, nil
			}
		}
		f.Close()
	}
}

// mountBPF mounts the BPF file system for pins if it is missing.
func mountBPF() error {
	var st unix.Statfs_t
	if err := unix.Statfs(bpfMount, &st); err != nil {
		return fmt.Errorf("stat %s: %w", bpfMount, err)
	}
	if st.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if err := unix.Mount("bpf", bpfMount, "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount the bpf file system at %s: %w", bpfMount, err)
	}
	return nil
}
