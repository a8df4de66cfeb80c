package host

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/netdev"
)

// attachAgain is the interval of retrying devices on which attaching the program failed.
const attachAgain = 15 * time.Second

// devices keeps a program attached to the devices that servers are behind: those of the ways to
// them. Servers on the machine itself, or behind the uplink, need none.
type devices struct {
	// uplinks returns the devices that frames of the uplink leave by. They are not servers'
	// devices.
	uplinks func() ([]int, error)
	// put attaches the program to the wanted devices and detaches it from all others. It returns
	// the devices that have it. It is never called concurrently.
	put func(ways netdev.Ways, want []int) (on []int, err error)
	// choose, if not nil, selects the ways of the servers that count; false: some are missing yet,
	// and nothing is changed.
	choose func(netdev.Ways) (netdev.Ways, bool)
	// careful: nothing is changed while the uplinks are unknown; otherwise the program is then
	// detached from all devices.
	careful bool
	// has and lacks are the log messages for devices that have the program, and for those that
	// should.
	has, lacks string
	clock      clock.Clock
	log        *slog.Logger
	hops       *netdev.NextHops

	// mu guards the fields below.
	mu     sync.Mutex
	ways   netdev.Ways // as received last
	on     []int       // devices that have the program
	fault  string      // of devices that lack the program, already logged
	missed bool        // some devices lack the program
}

// uplinkDevices returns an interface and, of a bond, its slaves.
func uplinkDevices(name string) ([]int, error) {
	dev, err := netdev.FindInterface(name)
	if err != nil {
		return nil, err
	}
	all, err := netdev.Slaves(name)
	if err != nil {
		return nil, err
	}
	out := []int{dev.Index}
	for _, s := range all {
		out = append(out, s.Index)
	}
	return out, nil
}

// serverDevices returns, in order, the devices of ways to servers behind this machine: Ethernet, no
// tag, no uplink.
func serverDevices(ways netdev.Ways, uplinks []int) (out []int) {
	for _, w := range ways.Hops() {
		if isServerWay(w, uplinks) {
			out = append(out, w.Ifindex)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// isServerWay reports whether a way leads to a server behind a device of its own.
func isServerWay(w netdev.NextHop, uplinks []int) bool {
	return w.Ifindex > 0 && w.Tag == 0 && w.Own != [6]byte{} && !slices.Contains(uplinks, w.Ifindex)
}

// run follows the ways to servers, and their devices, until ctx ends.
func (d *devices) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var again sync.WaitGroup
	again.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-d.clock.After(attachAgain):
			}
			d.retry()
		}
	})
	err := d.hops.Follow(ctx, d.changed)
	stop()
	again.Wait()
	return err
}

// changed sets the ways.
func (d *devices) changed(ways netdev.Ways) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ways = ways
	d.followLocked()
}

// again attaches the program according to the present ways.
func (d *devices) again() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.followLocked()
}

// retry retries devices that lack the program.
func (d *devices) retry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.missed {
		d.followLocked()
	}
}

// devicesOn returns the devices that have the program.
func (d *devices) devicesOn() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.on)
}

// trouble returns the reason why devices lack the program; empty if none does.
func (d *devices) trouble() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fault == "" {
		return ""
	}
	return d.lacks + ": " + d.fault
}

// followLocked attaches the program to the servers' devices. mu is held.
func (d *devices) followLocked() {
	ways := d.ways
	if d.choose != nil {
		var all bool
		if ways, all = d.choose(ways); !all {
			return
		}
	}
	uplinks, err := d.uplinks()
	if err != nil && d.careful {
		d.missed = true
		d.tellLocked(d.on, err)
		return
	}
	var want []int
	if err == nil {
		want = serverDevices(ways, uplinks)
	}
	on, followed := d.put(ways, want)
	d.missed = err != nil || !slices.Equal(on, want)
	d.tellLocked(on, errors.Join(err, followed))
}

// tellLocked logs changes of the devices and of the fault, once. mu is held.
func (d *devices) tellLocked(on []int, err error) {
	fault := ""
	if err != nil {
		fault = err.Error()
	}
	if fault != "" && fault != d.fault {
		d.log.Warn(d.lacks, "error", err)
	}
	d.fault = fault
	if !slices.Equal(on, d.on) {
		d.log.Info(d.has, "devices", strings.Join(deviceNames(on), ", "))
	}
	d.on = on
}

// deviceNames returns the names of devices for people, or the indices of removed ones.
func deviceNames(devices []int) []string {
	names := make([]string, 0, len(devices))
	for _, ifindex := range devices {
		name := strconv.Itoa(ifindex)
		if i, err := net.InterfaceByIndex(ifindex); err == nil {
			name = i.Name
		}
		names = append(names, name)
	}
	return names
}
