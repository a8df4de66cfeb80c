package dataplane

import (
	"errors"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// withoutTags takes the verifier's hints out of an object, as Linux before 6.8 reads it: there any pointer that a global function is given may be none. It
// tells how many there were.
func withoutTags(spec *ebpf.CollectionSpec) (hints int) {
	for _, p := range spec.Programs {
		for i := range p.Instructions {
			f := btf.FuncMetadata(&p.Instructions[i])
			if f == nil {
				continue
			}
			for _, tags := range f.ParamTags {
				if slices.Contains(tags, "arg:nonnull") {
					hints++
				}
			}
			f.ParamTags = nil
		}
	}
	return hints
}

// TestObjectsWithoutHints: every object of the muxes and hosts loads where the verifier knows no hints.
func TestObjectsWithoutHints(t *testing.T) {
	objects := map[string]func() (*ebpf.CollectionSpec, error){
		"mux": func() (*ebpf.CollectionSpec, error) { return muxSpec(testLimits) }, "host": loadHost, "host_co": loadHostCO, "host_probe": loadHostProbe,
		"burst": loadBurst, "watch": loadWatch,
	}
	hints := 0
	for name, load := range objects {
		spec, err := load()
		must(t, err)
		hints += withoutTags(spec)
		for _, m := range spec.Maps {
			m.Pinning = ebpf.PinNone
		}
		c, err := ebpf.NewCollection(spec)
		if err != nil {
			var rejected *ebpf.VerifierError
			if errors.As(err, &rejected) {
				t.Errorf("%s: %-20v", name, rejected)
				continue
			}
			t.Errorf("%s: %v", name, err)
			continue
		}
		c.Close()
	}
	if hints == 0 {
		t.Error("there were no hints: this test can say nothing")
	}
}
