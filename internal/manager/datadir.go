package manager

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrLocked is the error of opening a data directory that another manager uses.
var ErrLocked = errors.New("data directory is used by another process")

// DataDir is a manager's data directory, locked for this process.
type DataDir struct {
	path string
	lock *os.File
	// made reports whether its secrets were made since it was opened.
	made bool
}

// OpenDataDir creates the directory if it is absent (mode 0700) and locks it.
func OpenDataDir(path string) (*DataDir, error) {
	if err := os.MkdirAll(filepath.Join(path, "pki"), 0o700); err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	if _, err := os.Stat(filepath.Join(path, restoringFile)); err == nil {
		return nil, fmt.Errorf("open data directory %s: a restore of it broke off: remove it, and restore again", path)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("open data directory %s: %w", path, ErrLocked)
		}
		return nil, fmt.Errorf("lock data directory %s: %w", path, err)
	}
	return &DataDir{path: path, lock: lock}, nil
}

// Close releases the lock.
func (d *DataDir) Close() error { return d.lock.Close() }

// Etcd returns the path of the embedded store.
func (d *DataDir) Etcd() string { return filepath.Join(d.path, "etcd") }

// AdminConfig returns the path of the first administrator's client configuration.
func (d *DataDir) AdminConfig() string { return filepath.Join(d.path, "admin.yaml") }

func (d *DataDir) pki(name string) string { return filepath.Join(d.path, "pki", name) }

// secretFiles are the files of a cluster's secrets in a data directory.
var secretFiles = []string{"ca.crt", "ca.key", "store.key"}

// forgetSecrets removes secrets that were made but never used.
func (d *DataDir) forgetSecrets() error {
	var errs []error
	for _, file := range append([]string{certFile, keyFile, peersFile, generationsFile}, secretFiles...) {
		errs = append(errs, os.RemoveAll(d.pki(file)))
	}
	return errors.Join(errs...)
}

// readFile returns the file's content, or nil if the file is absent.
func readFile(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// writeFile replaces the file atomically and durably, mode 0600.
func writeFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}
