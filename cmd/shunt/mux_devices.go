package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/netdev"
)

// muxDevices finds the devices of --interface: the first device as named, whose addresses the mux
// has, and all devices that packets arrive on. A bond's are its slaves.
func muxDevices(names []string) (first netdev.Interface, arrivals []netdev.Interface, err error) {
	for i, name := range names {
		device, err := netdev.FindInterface(name)
		if err != nil {
			return first, nil, fmt.Errorf("--interface: %w", err)
		}
		if !device.Up {
			return first, nil, fmt.Errorf("--interface: %s: is down; bring it up with: ip link set %s up", name, name)
		}
		if i == 0 {
			first = device
		}
		slaves, err := netdev.Slaves(name)
		if err != nil {
			return first, nil, fmt.Errorf("--interface: %w", err)
		}
		if len(slaves) == 0 {
			return first, nil, fmt.Errorf("--interface: %s: is a bond without slaves", name)
		}
		arrivals = append(arrivals, slaves...)
	}
	return first, arrivals, nil
}

// indices returns the interfaces' indices.
func indices(devices []netdev.Interface) []int {
	out := make([]int, len(devices))
	for i, d := range devices {
		out[i] = d.Index
	}
	return out
}

// tend attaches the programs to the interfaces of these names, which may have been recreated. It
// skips missing interfaces other than the first, and returns an error for them.
func tend(names []string, tables *dataplane.Mux) (string, error) {
	var all []int
	var gone error
	for i, name := range names {
		slaves, err := netdev.Slaves(name)
		if err != nil {
			gone = errors.Join(gone, fmt.Errorf("--interface: %w", err))
		}
		if i == 0 && len(slaves) == 0 {
			return "", cmp.Or(gone, fmt.Errorf("--interface: %s: is a bond without slaves", name))
		}
		all = append(all, indices(slaves)...)
	}
	mended, err := tables.Tend(all[0], all[1:]...)
	return mended, errors.Join(err, gone)
}

// carriers combines the carrier states of several interfaces: changed reports whether any has a
// carrier.
type carriers struct {
	changed func(up bool)

	mu sync.Mutex
	up map[string]bool
}

func (c *carriers) tell(name string, up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up[name] = up
	any := false
	for _, u := range c.up {
		any = any || u
	}
	c.changed(any)
}

// watchCarriers follows the carriers of the interfaces until ctx ends.
func watchCarriers(ctx context.Context, cancel func(), names []string, changed func(up bool)) error {
	c := &carriers{changed: changed, up: map[string]bool{}}
	for _, name := range names {
		c.up[name] = true // until the first report, which is immediate
	}
	var parts []func() error
	for _, name := range names {
		parts = append(parts, func() error {
			return netdev.WatchCarrier(ctx, name, func(up bool) { c.tell(name, up) })
		})
	}
	return together(cancel, parts...)
}
