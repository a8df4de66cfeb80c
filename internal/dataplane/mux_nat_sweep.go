package dataplane

import (
	"context"
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
	held    map[lb.EndpointKey]uint64 // sessions by VIP, without those that are not trusted
	waiting map[lb.EndpointKey]uint64 // and those
}

// has says whether a session has all of these flags.
func (s *muxNatSession) has(flags muxNatFlag) bool { return s.Life&uint64(flags) == uint64(flags) }

// class is how much the mux knows of a session.
func (s *muxNatSession) class() FlowClass {
	switch {
	case s.has(muxNatFlagNAT_RESET) || s.has(muxNatFlagNAT_FIN_CLIENT|muxNatFlagNAT_FIN_SERVER):
		return FlowClosing
	case s.has(muxNatFlagNAT_TRUSTED):
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
func (m *Mux) eachSession(ctx context.Context, keep func(muxNatKey, *muxNatSession) bool) (ended uint64, err error) {
	if m.memory.natRoom == 0 {
		return 0, nil
	}
	table, cursor := m.objects.NatSessions, new(ebpf.MapBatchCursor)
	keys, values := make([]muxNatKey, natBatch), make([]muxNatSession, natBatch)
	for {
		if err := ctx.Err(); err != nil {
			return ended, fmt.Errorf("read sessions of path nat: %w", err)
		}
		n, err := table.BatchLookup(cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return ended, fmt.Errorf("read sessions of path nat: %w", err)
		}
		for i := range n {
			if keep(keys[i], &values[i]) {
				continue
			}
			gone, err := m.endSession(keys[i], keep)
			if err != nil {
				return ended, err
			}
			if gone {
				ended++
			}
		}
		if err != nil {
			return ended, nil
		}
	}
}

// endSession takes a session out of the tables unless keep, asked again, says that it stays: false, or it is gone already. The program does it, by
// the same rules as the walk.
func (m *Mux) endSession(key muxNatKey, keep func(muxNatKey, *muxNatSession) bool) (bool, error) {
	for {
		var now muxNatSession
		if err := m.objects.NatSessions.Lookup(&key, &now); errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("read a session of path nat: %w", err)
		}
		if now.has(muxNatFlagNAT_ENDING) || keep(key, &now) {
			return false, nil
		}
		ended, err := m.objects.NatExpire.Run(&ebpf.RunOptions{Context: &muxNatExpiry{Client: key, Life: now.Life, Stamp: now.Stamp}})
		if err != nil {
			return false, fmt.Errorf("end a session of path nat: %w", err)
		}
		if ended != 0 {
			return true, nil
		}
	}
}

// sweepSessions goes once through the sessions of path nat: ends those that are idle for too long, or whose endpoint is gone, and counts the rest.
func (m *Mux) sweepSessions() (natTotals, error) {
	totals := natTotals{byClass: map[FlowClass]uint64{}, members: map[MemberKey]uint64{}, held: map[lb.EndpointKey]uint64{}, waiting: map[lb.EndpointKey]uint64{}}
	if m.memory.natRoom == 0 {
		return totals, nil
	}
	tick, err := m.now()
	if err != nil {
		return totals, err
	}
	m.mu.Lock()
	endpoints, rest := m.tables.natEndpoints(), uint64(m.tables.ticks(natRest))
	m.mu.Unlock()
	totals.expired, err = m.eachSession(context.Background(), func(key muxNatKey, s *muxNatSession) bool {
		e, ok := endpoints.of(key)
		class, limit := s.class(), e.untrusted
		switch class {
		case FlowTrusted:
			limit = e.trusted
		case FlowClosing:
			limit = max(limit, rest)
		}
		// The port rests, whatever became of the endpoint.
		if !ok && class != FlowClosing || s.idleFor(tick) > limit {
			return false
		}
		totals.byClass[class]++
		if ok {
			totals.members[MemberKey{e.key, s.Member}]++
			if class != FlowUntrusted {
				totals.held[vipKey(e.key)]++
			} else {
				totals.waiting[vipKey(e.key)]++
			}
		}
		return true
	})
	own := m.memory.reasons.own(uint32(muxMuxReasonMUX_REASON_NAT_EXPIRED))
	store(own, load(own)+totals.expired)
	if err != nil {
		return totals, err
	}
	return totals, m.sweepPorts(tick)
}

// sessionsOf lists the sessions of endpoints with path nat.
func (m *Mux) sessionsOf(ctx context.Context, l *flowList, tick uint64) error {
	m.mu.Lock()
	wanted := map[lb.EndpointKey]int{}
	for i, key := range l.of {
		if e := m.tables.entries[key]; e != nil && e.flags()&muxEndpointFlagENDPOINT_NAT != 0 {
			wanted[key] = i
		}
	}
	endpoints := m.tables.natEndpoints()
	m.mu.Unlock()
	if len(wanted) == 0 {
		return nil
	}
	m.sweeping.Lock()
	defer m.sweeping.Unlock()
	_, err := m.eachSession(ctx, func(key muxNatKey, s *muxNatSession) bool {
		if e, ok := endpoints.of(key); ok {
			if i, listed := wanted[e.key]; listed {
				l.add(i, Flow{Member: s.Member, Class: s.class(), Age: time.Duration(s.idleFor(tick)) * m.tables.tick})
			}
		}
		return true
	})
	return err
}
