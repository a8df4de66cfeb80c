package dataplane

import (
	"fmt"
	"maps"
)

// Footprint is the kernel memory of the mux's tables in bytes, by table.
func (m *Mux) Footprint() (map[string]uint64, error) {
	out := map[string]uint64{}
	tables := m.objects.byName()
	maps.Copy(tables, m.objects.ownMaps())
	for name, table := range tables {
		info, err := table.Info()
		if err != nil {
			return nil, fmt.Errorf("read table %s: %w", name, err)
		}
		bytes, ok := info.Memlock()
		if !ok {
			return nil, fmt.Errorf("read table %s: the kernel does not tell its memory", name)
		}
		out[name] = bytes
	}
	return out, nil
}
