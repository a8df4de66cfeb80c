package dataplane

import (
	"fmt"
	"reflect"

	"github.com/cilium/ebpf"
)

// Programs are the two on the uplink, of packets that come and that leave, for tests and benchmarks that run them directly.
func (h *Host) Programs() (in, out *ebpf.Program) { return h.objects.HostIn, h.objects.HostOut }

// SweepSteps is how many calls of SweepStep make a whole pass.
func (h *Host) SweepSteps() int { return (len(h.flows.tags) + hostSweepStep - 1) / hostSweepStep }

// Footprint is the kernel memory of the host's tables in bytes, by table; tables whose entries come one by one, and that the kernel does not
// account, have 0 as long as they are empty.
func (h *Host) Footprint() (map[string]uint64, error) {
	out := map[string]uint64{}
	tables := reflect.ValueOf(h.objects.hostMaps)
	for i := range tables.NumField() {
		table, ok := tables.Field(i).Interface().(*ebpf.Map)
		if !ok {
			continue
		}
		info, err := table.Info()
		if err != nil {
			return nil, fmt.Errorf("read table %s: %w", tables.Type().Field(i).Name, err)
		}
		bytes, _ := info.Memlock()
		out[tables.Type().Field(i).Tag.Get("ebpf")] = bytes
	}
	return out, nil
}
