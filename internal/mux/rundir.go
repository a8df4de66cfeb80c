package mux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// runDirKeepers returns the functions that restore the agent's files in the run directory: the
// locks first, then the agent's state. Control runs them with the restoration of its socket.
func (a *Agent) runDirKeepers() []func() (restored bool, err error) {
	var keepers []func() (bool, error)
	for _, l := range a.o.Locks {
		keepers = append(keepers, l.Tend)
	}
	return append(keepers, a.tendRunDir)
}

// tendRunDir restores files that others removed from the run directory: the mark of a local drain,
// and the decision log. Without them the next agent would announce the routes of a drained mux and
// treat dead members as alive.
func (a *Agent) tendRunDir() (restored bool, err error) {
	if err := os.MkdirAll(a.o.RunDir, 0o700); err != nil {
		return false, fmt.Errorf("make run directory: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	restored, err = a.marks.tend()
	if !a.drain.local {
		return restored, err
	}
	path := filepath.Join(a.o.RunDir, drainFile)
	if _, missing := os.Lstat(path); !errors.Is(missing, os.ErrNotExist) {
		return restored, err
	}
	if fault := os.WriteFile(path, nil, 0o600); fault != nil {
		return restored, errors.Join(err, fmt.Errorf("remember drain: %w", fault))
	}
	return true, err
}

// tend rewrites the file if its path has no file or a different one.
func (m *marks) tend() (restored bool, err error) {
	if m.file == nil {
		// not written yet, or writing failed and is retried with the next decision
		return false, nil
	}
	own, err := m.file.Stat()
	if err != nil {
		return false, fmt.Errorf("look at decisions: %w", err)
	}
	if found, err := os.Lstat(filepath.Join(m.dir, marksFile)); err == nil && os.SameFile(own, found) {
		return false, nil
	}
	return true, m.rewrite()
}
