package dataplane

import (
	"fmt"
	"maps"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// Beside loads programs of another object around the mux's tables, with the mux's constants: benchmarks measure parts of the walk with them.
func (m *Mux) Beside(spec *ebpf.CollectionSpec, objects any) error {
	for name, v := range spec.Variables {
		if of := m.spec.Variables[name]; of != nil && of.SectionName == v.SectionName && len(of.Value) == len(v.Value) {
			v.Value = of.Value
		}
	}
	tables := m.objects.byName()
	maps.Copy(tables, m.objects.ownMaps())
	for name, table := range tables {
		if spec.Maps[name] == nil {
			delete(tables, name)
			continue
		}
		spec.Maps[name].MaxEntries = table.MaxEntries()
	}
	if err := spec.LoadAndAssign(objects, &ebpf.CollectionOptions{MapReplacements: tables}); err != nil {
		return fmt.Errorf("load programs beside the mux: %w", err)
	}
	return nil
}

// Slot is the index of an endpoint's slot.
func (m *Mux) Slot(e lb.EndpointKey) (uint32, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry := m.tables.entries[e]
	if entry == nil {
		return 0, false
	}
	return entry.slot, true
}
