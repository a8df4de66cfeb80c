package mux

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// leaseNames is a file with the VIPs that have SNAT, sorted, one a line. Its modification time is
// the last time at which a manager confirmed the leases as the newest.
type leaseNames struct {
	path string
	// said is the file's content, at its time, and heard the time that it should have.
	said      string
	at, heard time.Time
}

// heardPace is the least time between two changes of the file's time.
const heardPace = time.Second

// openLeaseNames reads the file of a previous agent. Lines that are not an address are skipped.
func openLeaseNames(path string) (*leaseNames, []netip.Addr, error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("read the VIPs with SNAT: %w", err)
	}
	var had []netip.Addr
	for _, line := range strings.Fields(string(data)) {
		if vip, err := netip.ParseAddr(line); err == nil {
			had = append(had, vip)
		}
	}
	n := &leaseNames{path: path, said: string(data), at: never, heard: never}
	if info, err := os.Stat(path); err == nil {
		n.at, n.heard = info.ModTime(), info.ModTime()
	}
	return n, had, nil
}

// never is the time of a file whose agent received no confirmation.
var never = time.Unix(0, 0)

// hear sets the time of the last confirmation. If the file's time cannot be set, the next agent is
// too cautious, which is safe; a removed file is written again.
func (n *leaseNames) hear(now time.Time) {
	if n == nil {
		return
	}
	if n.heard = now; now.Sub(n.at) < heardPace {
		return
	}
	err := os.Chtimes(n.path, now, now)
	if errors.Is(err, fs.ErrNotExist) && n.said != "" {
		n.write(n.said)
	} else if err == nil {
		n.at = now
	}
}

// keep writes the file if the VIPs changed. A failure is retried with the next change, because only
// an agent that starts without a manager, on a machine that was down, needs the file.
func (n *leaseNames) keep(vips map[netip.Addr]knownVIP) {
	if n == nil {
		return
	}
	var text strings.Builder
	for _, vip := range slices.SortedFunc(maps.Keys(vips), netip.Addr.Compare) {
		fmt.Fprintln(&text, vip)
	}
	if text.String() == n.said {
		return
	}
	n.write(text.String())
}

// write replaces the file.
func (n *leaseNames) write(text string) {
	err := os.MkdirAll(filepath.Dir(n.path), 0o700)
	if err == nil {
		err = os.WriteFile(n.path+".new", []byte(text), 0o600)
	}
	if err == nil {
		err = os.Chtimes(n.path+".new", n.heard, n.heard)
	}
	if err == nil {
		err = os.Rename(n.path+".new", n.path)
	}
	if err == nil {
		n.said, n.at = text, n.heard
	}
}
