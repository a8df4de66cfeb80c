package dataplane

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/shuntlb/shunt/internal/lb"
)

// natBatch is the number of sessions of path nat that are read at once.
const natBatch = 4096

// natTotals is what a sweep saw of sessions of path nat.
type natTotals struct {
	byClass map[FlowClass]uint64
	members map[MemberKey]uint64
	expired uint64
}

// class is how much the mux knows of a session.
func (s *muxNatSession) class() FlowClass {
	const fins = uint32(muxNatFlagNAT_FIN_CLIENT | muxNatFlagNAT_FIN_SERVER)
	switch {
	case s.Flags&uint32(muxNatFlagNAT_RESET) != 0 || s.Flags&fins == fins:
		return FlowClosing
	case s.Flags&uint32(muxNatFlagNAT_TRUSTED) != 0:
		return FlowTrusted
	}
	return FlowUntrusted
}

// idleFor is how many ticks a session was idle, by a time that was read a while ago.
func (s *muxNatSession) idleFor(tick uint64) uint64 {
	return uint64(max(int32(uint32(tick)-s.Stamp), 0))
}

// port is the key of a session's port.
func (s *muxNatSession) port(protocol uint8) muxNatKey {
	return muxNatKey{
		SrcHi: s.DipHi, SrcLo: s.DipLo, DstHi: s.LipHi, DstLo: s.LipLo, Sport: s.Dport, Dport: s.Lport, Protocol: protocol,
	}
}

// eachSession goes through the sessions, and ends those that keep says no to. Forwarding goes on meanwhile. sweeping is held.
func (m *Mux) eachSession(keep func(muxNatKey, *muxNatSession) bool) (ended uint64, err error) {
	if m.memory.natRoom == 0 {
		return 0, nil
	}
	table, cursor := m.objects.NatSessions, new(ebpf.MapBatchCursor)
	keys, values := make([]muxNatKey, natBatch), make([]muxNatSession, natBatch)
	for {
		n, err := table.BatchLookup(cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return ended, fmt.Errorf("read sessions of path nat: %w", err)
		}
		for i := range n {
			if keep(keys[i], &values[i]) {
				continue
			}
			// It may have gone on since it was read.
			var now muxNatSession
			if table.Lookup(&keys[i], &now) != nil || keep(keys[i], &now) {
				continue
			}
			if err := m.endSession(keys[i], &now); err != nil {
				return ended, err
			}
			ended++
		}
		if err != nil {
			return ended, nil
		}
	}
}

// endSession takes a session out of the tables: its port last, so that nobody else has it meanwhile.
func (m *Mux) endSession(key muxNatKey, s *muxNatSession) error {
	port := s.port(key.Protocol)
	for _, err := range []error{m.objects.NatSessions.Delete(&key), m.objects.NatPorts.Delete(&port)} {
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("end a session of path nat: %w", err)
		}
	}
	return nil
}

// sweepSessions goes once through the sessions of path nat: ends those that are idle for too long, or whose endpoint is gone, and counts the rest.
func (m *Mux) sweepSessions() (natTotals, error) {
	totals := natTotals{byClass: map[FlowClass]uint64{}, members: map[MemberKey]uint64{}}
	if m.memory.natRoom == 0 {
		return totals, nil
	}
	tick, err := m.now()
	if err != nil {
		return totals, err
	}
	type endpoint struct {
		key                lb.EndpointKey
		untrusted, trusted uint64
	}
	m.mu.Lock()
	slots := map[uint32]endpoint{}
	for key, e := range m.tables.entries {
		if e.flags()&muxEndpointFlagENDPOINT_NAT != 0 {
			slots[e.slot] = endpoint{key, e.policy >> muxPolicyShiftPOLICY_UNTRUSTED_SHIFT & 0xffff, e.policy >> muxPolicyShiftPOLICY_TRUSTED_SHIFT & 0xffff}
		}
	}
	m.mu.Unlock()
	live := func(key muxNatKey, s *muxNatSession) bool {
		e, ok := slots[s.Slot]
		if !ok || e.key.VIP != ofHalves(key.DstHi, key.DstLo) {
			return false
		}
		limit := e.untrusted
		if s.class() == FlowTrusted {
			limit = e.trusted
		}
		if s.idleFor(tick) > limit {
			return false
		}
		return true
	}
	totals.expired, err = m.eachSession(func(key muxNatKey, s *muxNatSession) bool {
		if !live(key, s) {
			return false
		}
		totals.byClass[s.class()]++
		totals.members[MemberKey{slots[s.Slot].key, s.Member}]++
		return true
	})
	own := m.memory.reasons.own(uint32(muxMuxReasonMUX_REASON_NAT_EXPIRED))
	store(own, load(own)+totals.expired)
	return totals, err
}

// sweepPorts frees ports that no session has: those of an agent that ended while it ended sessions.
func (m *Mux) sweepPorts() error {
	if m.memory.natRoom == 0 {
		return nil
	}
	orphans, err := m.portsAlone()
	if err != nil || len(orphans) == 0 {
		return err
	}
	// What was just being made is there after a grace period.
	if err := m.grace.wait(); err != nil {
		return err
	}
	for port, client := range orphans {
		if m.portAlone(port, client) {
			if err := m.objects.NatPorts.Delete(&port); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("free a port of path nat: %w", err)
			}
		}
	}
	return nil
}

// portAlone says whether a port is of a session that there is not.
func (m *Mux) portAlone(port, client muxNatKey) bool {
	var s muxNatSession
	return m.objects.NatSessions.Lookup(&client, &s) != nil || s.port(client.Protocol) != port
}

// portsAlone are the ports that no session has, with the sessions that they were of.
func (m *Mux) portsAlone() (map[muxNatKey]muxNatKey, error) {
	alone, cursor := map[muxNatKey]muxNatKey{}, new(ebpf.MapBatchCursor)
	keys, values := make([]muxNatKey, natBatch), make([]muxNatKey, natBatch)
	for {
		n, err := m.objects.NatPorts.BatchLookup(cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("read ports of path nat: %w", err)
		}
		for i := range n {
			if m.portAlone(keys[i], values[i]) {
				alone[keys[i]] = values[i]
			}
		}
		if err != nil {
			return alone, nil
		}
	}
}

// sessionsOf lists the sessions of an endpoint of path nat, at most `most`; none of another.
func (m *Mux) sessionsOf(of lb.EndpointKey, most int, tick uint64) (flows []Flow, err error) {
	m.mu.Lock()
	e := m.tables.entries[of]
	var slot uint32
	nat := e != nil && e.flags()&muxEndpointFlagENDPOINT_NAT != 0
	if nat {
		slot = e.slot
	}
	m.mu.Unlock()
	if !nat {
		return nil, nil
	}
	m.sweeping.Lock()
	defer m.sweeping.Unlock()
	_, err = m.eachSession(func(key muxNatKey, s *muxNatSession) bool {
		if s.Slot == slot && of.VIP == ofHalves(key.DstHi, key.DstLo) && len(flows) < most {
			flows = append(flows, Flow{Member: s.Member, Class: s.class(), Age: time.Duration(s.idleFor(tick)) * m.tables.tick})
		}
		return true
	})
	return flows, err
}
