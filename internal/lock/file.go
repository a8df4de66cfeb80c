package lock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrTaken is the error of a lock that another process holds.
var ErrTaken = errors.New("another process holds it")

// File is a lock file that this process holds. The kernel releases it when the process ends. It is
// safe for concurrent use.
type File struct {
	path string
	// prepare creates the directory of the file.
	prepare func() error
	// temporary: the file is removed when the lock is released.
	temporary bool

	mu sync.Mutex
	f  *os.File
}

// Take locks the file at path and writes the process id into it. It creates the directory with mode
// 0700 if it is missing. The error is ErrTaken, with the id of the process that holds the lock, if
// there is one.
func Take(path string) (*File, error) {
	l := &File{path: path, prepare: func() error { return makeDirectory(filepath.Dir(path)) }}
	if err := l.lock(); err != nil {
		return nil, err
	}
	return l, nil
}

// makeDirectory creates a directory that only its owner may access, in directories that all users
// may access, because other users have files there.
func makeDirectory(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o700)
}

// lock locks the file at the path, and releases the previous one.
func (l *File) lock() error {
	if err := l.prepare(); err != nil {
		return fmt.Errorf("make directory of the lock: %w", err)
	}
	for {
		f, err := take(l.path)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w%s", l.path, ErrTaken, holder(l.path))
		}
		if err != nil {
			return fmt.Errorf("lock %s: %w", l.path, err)
		}
		if f == nil {
			continue // the holder removed the file meanwhile
		}
		if l.f != nil {
			l.f.Close()
		}
		l.f = f
		return nil
	}
}

// Tend locks the file at the path again if it is missing or not the one that this process holds,
// because the file or its directory was removed. restored reports that it did. The error is
// ErrTaken if another process has locked the new file meanwhile.
func (l *File) Tend() (restored bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own, err := l.isOwnLocked()
	if own || err != nil {
		return false, err
	}
	if err := l.lock(); err != nil {
		return false, err
	}
	return true, nil
}

// isOwnLocked reports whether the file at the path is the one that is locked.
func (l *File) isOwnLocked() (bool, error) {
	held, err := l.f.Stat()
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", l.path, err)
	}
	found, err := os.Lstat(l.path)
	return err == nil && os.SameFile(held, found), nil
}

// Close releases the lock. The file of a run directory stays, that of a network namespace is
// removed.
func (l *File) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if own, _ := l.isOwnLocked(); own && l.temporary {
		os.Remove(l.path) //nolint:errcheck // a file without a holder hinders no agent
	}
	return l.f.Close()
}
