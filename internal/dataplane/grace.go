package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// grace waits until no BPF program holds anything that it read before: an update of a map of maps returns only after
// an RCU grace period (8 to 40 ms).
type grace struct{ outer, inner *ebpf.Map }

func newGrace() (*grace, error) {
	spec := &ebpf.MapSpec{Name: "grace_inner", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	inner, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("make grace map: %w", err)
	}
	outer, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "grace_outer", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: spec,
	})
	if err != nil {
		inner.Close()
		return nil, fmt.Errorf("make grace map of maps: %w", err)
	}
	return &grace{outer, inner}, nil
}

// wait returns after a grace period.
func (g *grace) wait() error {
	if err := g.outer.Update(uint32(0), g.inner, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("wait for readers: %w", err)
	}
	return nil
}

func (g *grace) close() {
	g.outer.Close()
	g.inner.Close()
}
