package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// numberLocked gives every wanted binding the index of its counter: the one it has, or a free one, set to zero.
func (h *Host) numberLocked(want hostTables) error {
	used := make([]bool, h.objects.BindingCounts.MaxEntries())
	for _, have := range h.state.bindings {
		used[have.Index] = true
	}
	for _, have := range h.state.ranges {
		used[have.Index] = true
	}
	used[snatBinding] = true
	// A counter goes on with one binding only, also where a range was split in two.
	kept := map[uint32]bool{}
	var fresh []*plannedBinding
	for i := range want.plans {
		p := &want.plans[i]
		if index, ok := h.state.indexOf(p); ok && !kept[index] {
			kept[index] = true
			want.set(p, index)
			continue
		}
		fresh = append(fresh, p)
	}
	free := 0
	for _, p := range fresh {
		for free < len(used) && used[free] {
			free++
		}
		if free == len(used) {
			return noRoom(TableBindings, "no free counter: old and new bindings together are more than %d", len(used))
		}
		used[free] = true
		want.set(p, uint32(free))
		h.connections.fresh(uint32(free))
		if err := h.objects.BindingCounts.Put(uint32(free), make([]hostCounter, ebpf.MustPossibleCPU())); err != nil {
			return fmt.Errorf("clear counter %d: %w", free, err)
		}
		if err := h.objects.BindingAsks.Put(uint32(free), make([]hostHandshakes, ebpf.MustPossibleCPU())); err != nil {
			return fmt.Errorf("clear handshakes %d: %w", free, err)
		}
	}
	return nil
}

// indexOf is the index of the counter that a binding has in these tables. A range has one when all its parts agree. One that leads to
// another DIP now has none: flows find its DIP by the index.
func (t *hostTables) indexOf(p *plannedBinding) (uint32, bool) {
	if len(p.prefixes) == 0 {
		have, ok := t.bindings[p.key]
		return have.Index, ok && have.Dip == p.DIP.As16()
	}
	first, ok := t.ranges[p.prefixes[0]]
	for _, key := range p.prefixes[1:] {
		have, there := t.ranges[key]
		ok = ok && there && have.Index == first.Index
	}
	return first.Index, ok && first.Dip == p.DIP.As16()
}
