package benchrun

import "github.com/shuntlb/shunt/internal/dataplane"

// MuxFrags: the mux's program takes frames of several buffers, and only its like can be called in its place.
const MuxFrags = true

// Mux is the mux's data plane, loaded for a benchmark: nothing pinned, attached to nothing.
type Mux struct{ *dataplane.Mux }

// OpenMux loads the mux's program with its production tables; sizes that are 0 are the production ones too.
func OpenMux(limits dataplane.MuxLimits) (*Mux, error) {
	m, err := dataplane.OpenMux(dataplane.MuxOptions{Address: frameTo, Limits: limits})
	if err != nil {
		return nil, err
	}
	return &Mux{m}, nil
}

// OpenLiveMux is OpenMux for frames that travel: those that leave by any device come from one address.
func OpenLiveMux(limits dataplane.MuxLimits) (*Mux, error) {
	mac := func(int) ([6]byte, error) { return frameTo, nil }
	m, err := dataplane.OpenMux(dataplane.MuxOptions{Address: frameTo, Limits: limits, DeviceMAC: mac})
	if err != nil {
		return nil, err
	}
	return &Mux{m}, nil
}

// Target is the program.
func (m *Mux) Target() Target { return Target{name: "mux", program: m.Program()} }
