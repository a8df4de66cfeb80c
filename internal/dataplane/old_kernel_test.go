package dataplane

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/shuntlb/shunt/internal/netdev"
)

// TestKernelsWithoutReqsk: where the kernel lacks what makes connections of handshakes, the program is refused by a reason, the others are there, and nothing is
// left behind.
func TestKernelsWithoutReqsk(t *testing.T) {
	e := newCOEnv(t)
	must(t, e.host.ProbeCO())
	if !e.host.HasCO() {
		t.Error("the program is there, but not known to be")
	}
	must(t, e.co.Close())
	must(t, detachCO(e.dir))
	if e.host.HasCO() {
		t.Error("the program is not there any more, but thought to be")
	}
	e.host.testNoCO = true
	if err := e.host.ProbeCO(); !errors.Is(err, ErrNoCO) {
		t.Errorf("probe: %v", err)
	}
	must(t, netdev.In(e.server, func() error {
		if _, err := e.host.OpenCO(); !errors.Is(err, ErrNoCO) {
			t.Errorf("open: %v", err)
		}
		return nil
	}))
	if e.host.HasCO() {
		t.Error("a program that was refused is there")
	}
	must(t, e.host.Apply(HostState{MTU: 1500, TunnelSources: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}}))
	e.host.testNoCO = false
	var err error
	must(t, netdev.In(e.server, func() error { e.co, err = e.host.OpenCO(); return err }))
	must(t, e.co.Apply(COSetup{SACK: true, WindowScaling: true}, []COEndpoint{coEndpointOf(coVIP4, 80)}))
	if e.co.state == nil || len(e.co.state) != 1 {
		t.Errorf("afterwards the table has %v", e.co.state)
	}
}

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
