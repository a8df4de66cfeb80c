package manager

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// restoringFile is in a data directory that is being restored. No manager opens such a directory.
const restoringFile = "restoring"

// ErrUsedDir reports that the data directory is not empty, because a backup is restored only into
// an empty one.
var ErrUsedDir = errors.New("the data directory is not empty")

// BuildDataDir creates a data directory completely or not at all: it is built next to its place,
// which is empty or absent, and renamed. An interrupted build leaves a directory .NAME.restore-*
// that no manager opens.
func BuildDataDir(path string, build func(*DataDir) error) error {
	path, err := throughLinks(path)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(path)
	switch {
	case err == nil && len(entries) > 0:
		return fmt.Errorf("%s: %w: it has %s", path, ErrUsedDir, entries[0].Name())
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("open data directory: %w", err)
	}
	whole, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	parent := filepath.Dir(whole)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	tmp, err := os.MkdirTemp(parent, "."+filepath.Base(whole)+".restore-")
	if err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	defer os.RemoveAll(tmp) // no effect after the rename
	if err := buildIn(tmp, build); err != nil {
		return err
	}
	// os.Rename refuses to replace a directory, even an empty one. The kernel accepts an empty one,
	// and refuses one that is no longer empty.
	if err := syscall.Rename(tmp, whole); err != nil {
		if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EXDEV) {
			return fmt.Errorf("%s: is a mount point: must be a directory in it", path)
		}
		return fmt.Errorf("put the data directory in its place %s: %w", path, err)
	}
	return syncDir(parent)
}

// throughLinks resolves a path, because a directory cannot be renamed to the place of a link.
func throughLinks(path string) (string, error) {
	path = filepath.Clean(path)
	if _, err := os.Lstat(path); err != nil {
		return path, nil // later uses report the error
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s: is a link that leads nowhere: must be a directory, or absent", path)
	}
	return real, err
}

// buildIn builds in an empty directory.
func buildIn(tmp string, build func(*DataDir) error) error {
	mark := filepath.Join(tmp, restoringFile)
	dir, err := OpenDataDir(tmp)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := errors.Join(writeFile(mark, nil), build(dir)); err != nil {
		return err
	}
	if err := os.Remove(mark); err != nil {
		return fmt.Errorf("finish the data directory: %w", err)
	}
	return errors.Join(syncDir(filepath.Join(tmp, "pki")), syncDir(tmp))
}

// syncDir makes renames and removals in a directory durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
