package checker

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
)

// memory is what this process has for itself, its garbage collected, in bytes. Mapped tables are not part.
func memory() (uint64, error) {
	debug.FreeOSMemory()
	return kibibytes("/proc/self/status", "RssAnon:")
}

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
