package benchrun

import "github.com/shuntlb/shunt/internal/dataplane"

// Mux is the mux's data plane, loaded for a benchmark: nothing pinned, attached to nothing.
type Mux struct{ *dataplane.Mux }

// OpenMux loads the mux's program with its production tables.
func OpenMux() (*Mux, error) {
	m, err := dataplane.OpenMux(dataplane.MuxOptions{Address: frameTo})
	if err != nil {
		return nil, err
	}
	return &Mux{m}, nil
}

// Target is the program.
func (m *Mux) Target() Target { return Target{"mux", m.Program()} }
