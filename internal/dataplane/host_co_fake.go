package dataplane

import "fmt"

// FakeHostCO is HostCOTables in memory.
type FakeHostCO struct {
	Setup     COSetup
	Endpoints []COEndpoint
	Tuned     int
	Closed    bool
	Refuses   error // what Apply says, if anything
}

var _ HostCOTables = (*FakeHostCO)(nil)

// Apply implements HostCOTables: it refuses what the real one refuses.
func (f *FakeHostCO) Apply(setup COSetup, endpoints []COEndpoint) error {
	if f.Refuses != nil {
		return f.Refuses
	}
	for _, e := range endpoints {
		if _, _, err := coRecord(e); err != nil {
			return fmt.Errorf("handshakes of %s: %w", e.Key.VIP, err)
		}
	}
	f.Setup, f.Endpoints = setup, append([]COEndpoint{}, endpoints...)
	return nil
}

// Tune implements HostCOTables.
func (f *FakeHostCO) Tune() error { f.Tuned++; return nil }

// Counters implements HostCOTables: nothing is counted.
func (f *FakeHostCO) Counters() (map[string]uint64, error) {
	return map[string]uint64{"answered": 0}, nil
}

// Close implements HostCOTables.
func (f *FakeHostCO) Close() error { f.Closed = true; return nil }
