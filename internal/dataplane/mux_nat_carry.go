package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// carrySessions gives the tables the sessions of path nat that former ones have: dropped are those whose endpoint is not one of path nat any more, and those
// without room. It may be done again, for the sessions that came since.
func (m *Mux) carrySessions(f *formerTables) (dropped int, err error) {
	switch {
	case f.sessions == nil || m.memory.natRoom == 0:
		return 0, nil
	case f.sessions.ValueSize() == formerNATSize:
		return carryFrom(m, f.sessions, func(s *formerNATSession) muxNatSession { return s.session() })
	}
	return carryFrom(m, f.sessions, func(s *muxNatSession) muxNatSession { return *s })
}

// carryFrom is carrySessions for a table whose sessions are read as T.
func carryFrom[T any](m *Mux, from *ebpf.Map, as func(*T) muxNatSession) (dropped int, err error) {
	endpoints := m.tables.natEndpoints()
	cursor, keys, values := new(ebpf.MapBatchCursor), make([]muxNatKey, natBatch), make([]T, natBatch)
	for {
		n, err := from.BatchLookup(cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return dropped, fmt.Errorf("read former sessions of path nat: %w", err)
		}
		for i := range n {
			s := as(&values[i])
			if s.has(muxNatFlagNAT_ENDING) {
				continue
			}
			e, ok := endpoints.of(keys[i])
			if !ok {
				dropped++
				continue
			}
			s.Slot = e.slot
			// The former program may have seen a newer one: the next packet of the server says.
			s.Life &^= uint64(muxNatFlagNAT_CLOCK)
			if !m.adoptSession(keys[i], &s) {
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
	port, name := s.port(key.Protocol), muxNatName{Client: key, Number: uint32(s.Life >> muxNatLifeShiftNAT_NUMBER_SHIFT)}
	if m.objects.NatPorts.Update(&port, &name, ebpf.UpdateNoExist) != nil {
		return false
	}
	if !s.has(muxNatFlagNAT_TRUSTED) && m.objects.NatOpenings.Update(nil, &name, ebpf.UpdateAny) != nil {
		m.objects.NatPorts.Delete(&port) //nolint:errcheck // it was just put there
		return false
	}
	if err := m.objects.NatSessions.Update(&key, s, ebpf.UpdateNoExist); err != nil {
		m.objects.NatPorts.Delete(&port) //nolint:errcheck // it was just put there
		return errors.Is(err, ebpf.ErrKeyExist)
	}
	return true
}
