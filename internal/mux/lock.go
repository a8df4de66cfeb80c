package mux

import (
	"fmt"
	"os"
	"syscall"
)

// lockFile takes a lock that the kernel releases when the process ends.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: another agent runs here: %w", path, err)
	}
	return func() { f.Close() }, nil
}
