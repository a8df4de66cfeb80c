package mux

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/shuntlb/shunt/internal/lock"
)

// lockName is the file in the run directory that excludes a second agent.
const lockName = "agent.lock"

// Lock creates the run directory and locks it for this process. The kernel releases the lock when
// the process ends.
func Lock(runDir string) (*lock.File, error) {
	l, err := lock.Take(filepath.Join(runDir, lockName))
	if errors.Is(err, lock.ErrTaken) {
		return nil, fmt.Errorf("another mux agent runs with this run directory: %w", err)
	}
	return l, err
}
