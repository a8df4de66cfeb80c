package mux

import (
	"errors"
	"fmt"
	"net"
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

// machineLock is an address of abstract Unix sockets, of which every network namespace has its own.
const machineLock = "@shunt-mux"

// LockMachine takes the machine, or the network namespace, for this mux: two would take each other's packets. The kernel
// lets go of it when the process ends.
func LockMachine() (unlock func(), err error) {
	l, err := net.Listen("unix", machineLock)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errors.New("another mux agent runs on this machine, with another run directory: there can be one in a network namespace")
	}
	if err != nil {
		return nil, fmt.Errorf("lock the machine: %w", err)
	}
	return func() { l.Close() }, nil
}
