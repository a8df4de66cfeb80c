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

// leaseNames is a file with the VIPs that have SNAT, one to a line, in order. Its time is when the agent heard last that its leases
// were the newest.
type leaseNames struct {
	path string
	// said is what the file says, at its time; heard is what that should be.
	said      string
	at, heard time.Time
}

// heardPace is the least time between two changes of the file's time.
const heardPace = time.Second

// openLeaseNames reads what an agent before left. Lines that are no address are passed over.
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

// never is the time of a file whose agent did not hear anything.
var never = time.Unix(0, 0)

// hear keeps when it was heard that leases were the newest. A file that cannot be changed makes the next agent cautious; one that was
// removed is written again.
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

// keep writes the file when it says something else. One that cannot be written is tried again with the next change: what it is for
// is an agent that starts on a machine that was down, without a manager.
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
