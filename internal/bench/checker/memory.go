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

// Memory is the memory use of a Go program, in bytes.
type Memory struct {
	// Running is the anonymous memory of the process, with garbage. Resident is the rest after a
	// garbage collection.
	Running  uint64 `json:"running"`
	Resident uint64 `json:"resident"`
	// Heap is the reachable part of Resident. Spare is the rest of the heap that is not returned to
	// the kernel: parts of pages.
	Heap  uint64 `json:"heap"`
	Spare uint64 `json:"spare"`
	// Tables is the kernel memory that holds targets. It is not part of the values above.
	Tables uint64 `json:"tables"`
}

// memory measures this process. It omits tables, which are mapped, and collects garbage first for
// all but Running.
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

// resident returns the anonymous resident memory of this process.
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
