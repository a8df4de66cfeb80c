package mux

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lockName is the file in the run directory that keeps a second agent out.
const lockName = "agent.lock"

// Lock makes the run directory and takes it for this process. The kernel lets go of it when the process ends.
func Lock(runDir string) (unlock func(), err error) {
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	path := filepath.Join(runDir, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: another mux agent runs with this run directory: %w", path, err)
	}
	return func() { f.Close() }, nil
}
