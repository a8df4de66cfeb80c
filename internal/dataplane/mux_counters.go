package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// Counters implements MuxTables.
func (m *Mux) Counters() (MuxCounters, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := MuxCounters{
		Reasons: make(map[string]uint64, len(m.reasons)),
		Members: map[MemberKey]Counter{},
	}
	c.Endpoints = make(map[lb.EndpointKey]Counter, len(m.tables.entries))
	for i, name := range m.reasons {
		var perCPU []uint64
		if err := m.objects.Reasons.Lookup(uint32(i), &perCPU); err != nil {
			return c, fmt.Errorf("read reason %s: %w", name, err)
		}
		for _, n := range perCPU {
			c.Reasons[name] += n
		}
	}
	for key, e := range m.tables.entries {
		if key.Protocol == 0 {
			continue
		}
		var err error
		if c.Endpoints[key], err = sumCounter(m.objects.EndpointCounts, e.index); err != nil {
			return c, err
		}
		for id := range e.members {
			if c.Members[MemberKey{key, id}], err = sumCounter(m.objects.MemberCounts, e.block.first+uint32(id)); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}

// sumCounter sums a per-CPU counter.
func sumCounter(m *ebpf.Map, i uint32) (sum Counter, err error) {
	var perCPU []muxCounter
	if err := m.Lookup(i, &perCPU); err != nil {
		return sum, fmt.Errorf("read counter %d of %s: %w", i, m, err)
	}
	for _, c := range perCPU {
		sum.Packets += c.Packets
		sum.Bytes += c.Bytes
	}
	return sum, nil
}
