package dataplane

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// natRest is how long the port of a connection that is over rests towards its server.
const natRest = time.Duration(muxNatLimitLIMIT_NAT_REST) * time.Second

// natAlone is a port that no session has.
type natAlone struct {
	name  muxNatName // whose it was
	since uint64     // tick of the first look that saw it
}

// sweepPorts frees ports that no session has and that had none at a former look, as long ago as ports rest: those of connections that were over when
// their client began another one elsewhere, and those of an agent or a kernel that ended in between. What is just being made or ended is another one
// at the second look, or has a session. sweeping is held.
func (m *Mux) sweepPorts(tick uint64) error {
	if m.memory.natRoom == 0 {
		return nil
	}
	alone, err := m.portsAlone()
	if err != nil {
		return err
	}
	for port, name := range alone {
		was, known := m.natAlone[port]
		if !known || was.name != name {
			was = natAlone{name, tick}
		}
		if tick-was.since <= uint64(m.tables.ticks(natRest)) {
			m.natAlone[port] = was
			continue
		}
		if err := m.objects.NatPorts.Delete(&port); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("free a port of path nat: %w", err)
		}
		delete(m.natAlone, port)
	}
	for port := range m.natAlone {
		if _, still := alone[port]; !still {
			delete(m.natAlone, port)
		}
	}
	return nil
}

// portAlone says whether a port is of a session that there is not.
func (m *Mux) portAlone(port muxNatKey, name *muxNatName) bool {
	var s muxNatSession
	return m.objects.NatSessions.Lookup(&name.Client, &s) != nil || s.port(name.Client.Protocol) != port
}

// portsAlone are the ports that no session has, with the sessions that they were of.
func (m *Mux) portsAlone() (map[muxNatKey]muxNatName, error) {
	alone, cursor := map[muxNatKey]muxNatName{}, new(ebpf.MapBatchCursor)
	keys, values := make([]muxNatKey, natBatch), make([]muxNatName, natBatch)
	for {
		n, err := m.objects.NatPorts.BatchLookup(cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("read ports of path nat: %w", err)
		}
		for i := range n {
			if m.portAlone(keys[i], &values[i]) {
				alone[keys[i]] = values[i]
			}
		}
		if err != nil {
			return alone, nil
		}
	}
}
