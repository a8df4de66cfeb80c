package dataplane

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// FakeHostProbes are a host's probe tables without a program.
type FakeHostProbes struct {
	*FakeProbes

	devices sync.Mutex
	on      []int
	broken  []int
}

var _ HostProbeTables = (*FakeHostProbes)(nil)

// NewFakeHostProbes makes tables of so many rules, a power of two.
func NewFakeHostProbes(size uint32) *FakeHostProbes {
	f := &FakeHostProbes{FakeProbes: NewFakeProbes(size)}
	word := f.word
	f.word = func(hop NextHop) (uint64, error) {
		f.devices.Lock()
		defer f.devices.Unlock()
		if !slices.Contains(f.on, hop.Ifindex) {
			return 0, errors.New("the way to the server does not lead out of a device of servers")
		}
		return word(hop)
	}
	return f
}

// Break makes devices take no program from now on; the others do.
func (f *FakeHostProbes) Break(devices ...int) {
	f.devices.Lock()
	defer f.devices.Unlock()
	f.broken = devices
}

// On are the devices that have the program.
func (f *FakeHostProbes) On() []int {
	f.devices.Lock()
	defer f.devices.Unlock()
	return slices.Clone(f.on)
}

// Follow implements HostProbeTables.
func (f *FakeHostProbes) Follow(devices []int) (on []int, err error) {
	f.devices.Lock()
	defer f.devices.Unlock()
	for _, d := range slices.Sorted(slices.Values(devices)) {
		if slices.Contains(f.broken, d) {
			err = errors.Join(err, fmt.Errorf("attach to interface %d: broken", d))
		} else {
			on = append(on, d)
		}
	}
	f.on = on
	return slices.Clone(on), err
}

// Close implements HostProbeTables.
func (f *FakeHostProbes) Close() error {
	_, err := f.Follow(nil)
	return err
}
