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

// Root holds one directory per lab. Everything a lab is can be found from its directory.
const Root = "/run/shunt/lab"

// bpfRoot holds the pins of each lab's nodes: NAME/NODE.
const (
	bpfMount = "/sys/fs/bpf"
	bpfRoot  = bpfMount + "/shunt-lab"
)

// state is what is kept of a lab. It is written before the first namespace is made, so that whatever was made can be
// found, and again when all of it is there.
type state struct {
	Topology Topology `json:"topology"`
	// FabricOnly labs have no manager and no agents running.
	FabricOnly bool `json:"fabric_only"`
	// Complete: Up came to its end.
	Complete bool `json:"complete"`
}

// Dir is the directory of a lab.
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

// writeFile replaces a file so that readers see the old or the new content, never a part.
func writeFile(path string, content []byte, mode os.FileMode) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, content, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// makeOpenDir makes a lab's directory or one in it such that daemons with a user of their own can pass, whatever the
// umask is. Secrets have modes of their own.
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

// Names lists all labs, half-made ones too.
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

// lock keeps two commands from building or removing the same lab at once. It is gone with the process. unlock with
// forget removes the lock's file too.
func lock(name string) (unlock func(forget bool), err error) {
	path := filepath.Join(Root, "."+name+".lock")
	for {
		if err := os.MkdirAll(Root, 0o755); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, fs.ErrNotExist) { // Root went meanwhile
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
						_ = os.Remove(Root) // stays while other labs are there
						_ = os.Remove(filepath.Dir(Root))
					}
					f.Close()
				}, nil
			}
		}
		f.Close()
	}
}

// mountBPF makes sure that pins have a file system to live in.
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
