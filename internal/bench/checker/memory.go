package checker

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
)

// memory is what this process has for itself, its garbage collected, and what its BPF maps take in the kernel (fdinfo's memlock), in
// bytes. Pages of maps that are mapped count once, as the maps'.
func memory() (bytes uint64, err error) {
	debug.FreeOSMemory()
	bytes, err = kibibytes("/proc/self/status", "RssAnon:")
	if err != nil {
		return 0, err
	}
	descriptors, err := os.ReadDir("/proc/self/fdinfo")
	if err != nil {
		return 0, fmt.Errorf("read own maps: %w", err)
	}
	maps := map[string]uint64{}
	for _, d := range descriptors {
		// A descriptor may be closed meanwhile, and most are no map.
		info, err := os.ReadFile(filepath.Join("/proc/self/fdinfo", d.Name()))
		if err != nil {
			continue
		}
		if id, size, ok := mapOf(info); ok {
			maps[id] = size
		}
	}
	for _, size := range maps {
		bytes += size
	}
	return bytes, nil
}

// mapOf reads the fdinfo of a BPF map: its id and its size in bytes.
func mapOf(info []byte) (id string, size uint64, ok bool) {
	for line := range bytes.Lines(info) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch text := string(bytes.TrimSpace(value)); string(name) {
		case "map_id":
			id = text
		case "memlock":
			n, err := strconv.ParseUint(text, 10, 64)
			size, ok = n, err == nil
		}
	}
	return id, size, ok && id != ""
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
