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

// attachAgain is how long until devices are tried again that took no program.
const attachAgain = 15 * time.Second

// devices keeps a program on the devices that servers are behind: those by which the ways to them lead. What is on the machine itself, or
// behind the uplink, has none.
type devices struct {
	// uplinks are the devices that frames of the uplink leave by: they are no servers'.
	uplinks func() ([]int, error)
	// put makes the program be on the wanted devices and on no others; it tells which have it. It is never called twice at once.
	put func(ways netdev.Ways, want []int) (on []int, err error)
	// choose, if not nil, picks of the ways those of servers that count; false: they are not all there yet, and nothing is put anywhere.
	choose func(netdev.Ways) (netdev.Ways, bool)
	// careful changes nothing while the uplinks are not known; else no device has the program then.
	careful bool
	// has and lacks are what is logged of devices that have the program, and of those that should.
	has, lacks string
	clock      clock.Clock
	log        *slog.Logger
	hops       *netdev.NextHops

	// mu guards what follows.
	mu     sync.Mutex
	ways   netdev.Ways // as they were told last
	on     []int       // devices that have the program
	fault  string      // of those that should, logged already
	missed bool        // there are such
}

// uplinkDevices are an interface and, of a bond, its slaves.
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

// serverDevices are the devices in order that ways lead out of as they do to servers behind this machine: Ethernet, no tag, no uplink.
func serverDevices(ways netdev.Ways, uplinks []int) (out []int) {
	for _, w := range ways.Hops() {
		if isServerWay(w, uplinks) {
			out = append(out, w.Ifindex)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// isServerWay tells whether a way leads to a server behind a device of its own.
func isServerWay(w netdev.NextHop, uplinks []int) bool {
	return w.Ifindex > 0 && w.Tag == 0 && w.Own != [6]byte{} && !slices.Contains(uplinks, w.Ifindex)
}

// run follows the ways to servers, and the devices that they lead out of, until ctx ends.
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

// changed takes other ways.
func (d *devices) changed(ways netdev.Ways) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ways = ways
	d.followLocked()
}

// again puts the program where it belongs by the ways of before.
func (d *devices) again() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.followLocked()
}

// retry tries devices again that took no program.
func (d *devices) retry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.missed {
		d.followLocked()
	}
}

// devicesOn are those that have the program.
func (d *devices) devicesOn() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.on)
}

// trouble says why devices that should have the program do not; empty when all have it.
func (d *devices) trouble() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fault == "" {
		return ""
	}
	return d.lacks + ": " + d.fault
}

// followLocked puts the program where servers are.
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

// tellLocked logs what became of the devices, once.
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

// deviceNames are names of devices, for people; of those that went meanwhile their indices.
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
