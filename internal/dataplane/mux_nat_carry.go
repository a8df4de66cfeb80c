package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// carrySessions gives the tables the sessions of path nat that former ones have: dropped are those whose endpoint is not one of path nat any more, and those
// without room. It may be done again, for the sessions that came since.
func (m *Mux) carrySessions(f *formerTables) (dropped int, err error) {
	if f.sessions == nil || m.memory.natRoom == 0 {
		return 0, nil
	}
	var (
		key muxNatKey
		s   muxNatSession
	)
	cursor, keys, values := new(ebpf.MapBatchCursor), make([]muxNatKey, natBatch), make([]muxNatSession, natBatch)
	for {
		n, err := f.sessions.BatchLookup(cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return dropped, fmt.Errorf("read former sessions of path nat: %w", err)
		}
		for i := range n {
			key, s = keys[i], values[i]
			e := m.tables.entries[f.slots[s.Slot]]
			if e == nil || e.flags()&muxEndpointFlagENDPOINT_NAT == 0 {
				dropped++
				continue
			}
			s.Slot = e.slot
			// The former program may have seen a newer one: the next packet of the server says.
			s.Flags &^= uint32(muxNatFlagNAT_CLOCK)
			if !m.adoptSession(key, &s) {
				dropped++
			}
		}
		if err != nil {
			return dropped, nil
		}
	}
}

// adoptSession puts a session into the tables as the program would; false: there is no room, or its port is another's. One that there is stays.
func (m *Mux) adoptSession(key muxNatKey, s *muxNatSession) bool {
	var has muxNatSession
	if m.objects.NatSessions.Lookup(&key, &has) == nil {
		return true
	}
	port := s.port(key.Protocol)
	if m.objects.NatPorts.Update(&port, &key, ebpf.UpdateNoExist) != nil {
		return false
	}
	if err := m.objects.NatSessions.Update(&key, s, ebpf.UpdateNoExist); err != nil {
		m.objects.NatPorts.Delete(&port) //nolint:errcheck // it was just put there
		return errors.Is(err, ebpf.ErrKeyExist)
	}
	return true
}
