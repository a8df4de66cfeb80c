package checker

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
)

// Memory is what a Go program takes, in bytes.
type Memory struct {
	// Running is what it had for itself, with its garbage; Resident what is left when that is collected.
	Running  uint64 `json:"running"`
	Resident uint64 `json:"resident"`
	// Heap, of Resident, is what it reaches, and Spare what else the heap keeps: parts of pages.
	Heap  uint64 `json:"heap"`
	Spare uint64 `json:"spare"`
	// Tables are the kernel's that hold rules. They are no part of the above.
	Tables uint64 `json:"tables"`
}

// memory is that of this process without tables, which are mapped, and its garbage collected.
func memory() (m Memory, err error) {
	if m.Running, err = resident(); err != nil {
		return m, err
	}
	debug.FreeOSMemory()
	if m.Resident, err = resident(); err != nil {
		return m, err
	}
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m.Heap, m.Spare = s.HeapAlloc, s.HeapSys-s.HeapReleased-s.HeapAlloc
	return m, nil
}

// resident is the memory that is this process's own.
func resident() (uint64, error) { return kibibytes("/proc/self/status", "RssAnon:") }

// kibibytes reads a line like "RssAnon:   12 kB" of a file, in bytes.
func kibibytes(path, name string) (uint64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("read own memory: %w", err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if value, ok := bytes.CutPrefix(lines.Bytes(), []byte(name)); ok {
			kib, err := strconv.ParseUint(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read own memory: %w", err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("read own memory: %s has no %s", path, name)
}
