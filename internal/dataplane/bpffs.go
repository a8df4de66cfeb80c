package dataplane

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// bpffsRoot is where the bpf file system belongs.
const bpffsRoot = "/sys/fs/bpf"

// EnsureBPFFS makes the pin directory, mounts the bpf file system at /sys/fs/bpf when the directory lies there and it
// is missing, and refuses directories that lie on another file system.
func EnsureBPFFS(dir string) error {
	if strings.HasPrefix(filepath.Clean(dir)+"/", bpffsRoot+"/") {
		if err := mountBPFFS(); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	is, err := isBPFFS(dir)
	if err != nil {
		return err
	}
	if !is {
		return fmt.Errorf("pin directory %s: it must lie on a bpf file system (mount -t bpf bpf %s)", dir, bpffsRoot)
	}
	return nil
}

func mountBPFFS() error {
	parent, err := os.Open(filepath.Dir(bpffsRoot))
	if err != nil {
		return fmt.Errorf("mount bpf file system: %w", err)
	}
	defer parent.Close()
	// Agents that start together must not mount twice: the upper mount would hide the pins in the lower one.
	if err := unix.Flock(int(parent.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", parent.Name(), err)
	}
	is, err := isBPFFS(bpffsRoot)
	if err != nil || is {
		return err
	}
	if err := unix.Mount("bpf", bpffsRoot, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount bpf file system at %s: %w", bpffsRoot, err)
	}
	return nil
}

// lockPins takes a pin directory for this process: a bpf file system is the same in all network namespaces, and interfaces of
// two may have one number, so that a second mux would take the first one's program for its own. The kernel lets go of it when
// the process ends.
func lockPins(dir string) (*pinLock, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock pin directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock pin directory %s: another mux works with it: %w", dir, err)
	}
	return &pinLock{f}, nil
}

// pinLock is the lock on a pin directory.
type pinLock struct{ directory *os.File }

// Close releases the lock.
func (l *pinLock) Close() error { return l.directory.Close() }

// holds reports whether the locked directory is the one at path.
func (l *pinLock) holds(path string) (bool, error) {
	locked, err := l.directory.Stat()
	if err != nil {
		return false, fmt.Errorf("look at the locked pin directory: %w", err)
	}
	found, err := os.Stat(path)
	if err != nil {
		return false, fmt.Errorf("look at the pin directory: %w", err)
	}
	return os.SameFile(locked, found), nil
}

func isBPFFS(dir string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return false, fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	return fs.Type == unix.BPF_FS_MAGIC, nil
}
