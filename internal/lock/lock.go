// Package lock ensures that only one agent of a role runs in a network namespace.
package lock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Directory contains the lock files: one for each role and network namespace. It belongs to the
// user of the agents, root, and only this user may access it, so no other user can hold a lock.
const Directory = "/run/shunt/locks"

// maxPID limits the bytes that are read from a lock file.
const maxPID = 32

// Namespace locks the network namespace of the calling thread for an agent of a role: "mux" or
// "host". The error of a second agent names the process that holds the lock. The kernel releases
// the lock when the process ends.
func Namespace(role string) (*File, error) { return namespace(Directory, role) }

func namespace(dir, role string) (*File, error) {
	if err := protect(dir); err != nil {
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return nil, fmt.Errorf("lock the network namespace: look at /proc/thread-self/ns/net: %w", err)
	}
	l := &File{path: filepath.Join(dir, fmt.Sprintf("%s-%d", role, ns.Ino)), prepare: func() error { return protect(dir) }, temporary: true}
	err := l.lock()
	if errors.Is(err, ErrTaken) {
		return nil, fmt.Errorf("another %s agent%s runs in this network namespace, with another run directory: end it first (lock %s)", role, holder(l.path), l.path)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	return l, nil
}

// protect creates the directory, and refuses one that other users may access, or that belongs to
// another user.
func protect(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var info unix.Stat_t
	if err := unix.Lstat(dir, &info); err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	switch {
	case info.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s: must be a directory", dir)
	case int(info.Uid) != os.Geteuid():
		return fmt.Errorf("%s: owner is user %d: must be user %d, as whom the agent runs", dir, info.Uid, os.Geteuid())
	case info.Mode&0o077 != 0:
		return fmt.Errorf("%s: mode is %#o: must be 0700", dir, info.Mode&0o777)
	}
	return nil
}

// take locks the file at path and writes the process id into it. It returns nil if the locked file
// is no longer the one at path.
func take(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	locked, err := f.Stat()
	if err == nil {
		var found os.FileInfo
		if found, err = os.Stat(path); errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(locked, found) {
			f.Close()
			return nil, nil
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	// On a full disk the process id is missing, but the agent still runs.
	if err := f.Truncate(0); err == nil {
		f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0) //nolint:errcheck // see above
	}
	return f, nil
}

// holder returns the process that a lock file names, if any.
func holder(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, maxPID))
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		return fmt.Sprintf(" (process %d)", pid)
	}
	return ""
}
