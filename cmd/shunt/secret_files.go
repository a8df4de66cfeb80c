package main

import (
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"syscall"
)

// maxSecretFile bounds a file with a password, in bytes.
const maxSecretFile = 64 << 10

// secretFiles reads files with secrets, and warns about files that other users may read.
type secretFiles struct {
	log *slog.Logger

	mu     sync.Mutex
	warned map[string]fs.FileMode // by file: the mode at the last warning
}

// read returns the content of a file.
func (s *secretFiles) read(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: must be a file", name)
	}
	s.warn(name, info.Mode().Perm())
	return io.ReadAll(io.LimitReader(f, maxSecretFile))
}

// warn logs that users other than owner and group may read a file, once per mode.
func (s *secretFiles) warn(name string, mode fs.FileMode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.warned == nil {
		s.warned = map[string]fs.FileMode{}
	}
	before, known := s.warned[name]
	s.warned[name] = mode
	if mode&0o007 != 0 && (!known || before != mode) {
		s.log.Warn("file with a password is open to all users", "file", name, "mode", fmt.Sprintf("%#o", mode), "cure", "chmod 0600 "+name)
	}
}
