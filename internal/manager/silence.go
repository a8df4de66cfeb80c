package manager

import (
	"context"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

const (
	// silentFor is how long a host may have no stream at any member before its verdicts are
	// withdrawn. It covers an agent restart, a stream that moves to the next manager, and a member
	// that opens a new relay.
	silentFor = 3 * time.Second
	// silenceTick is the interval of the check for silent hosts.
	silenceTick = 500 * time.Millisecond
	// mutedAfter is how long a host with an open stream may send nothing until its verdicts are
	// withdrawn. Hosts report every second. With mutedTick it adds up to 2 s, after which muxes
	// probe the host's backends themselves. It needs no margin for reconnecting, because the
	// verdicts count again with the next report.
	mutedAfter = 1750 * time.Millisecond
	// mutedTick is the interval of the check of hosts with open streams.
	mutedTick = 250 * time.Millisecond
)

// tendMuted withdraws the verdicts of hosts whose streams end here and that send nothing, until the
// member stops.
func (m *Manager) tendMuted() {
	for last := m.o.Clock.Now(); ; {
		select {
		case <-m.o.Clock.After(mutedTick):
		case <-m.ctx.Done():
			return
		}
		now := m.o.Clock.Now()
		// A manager that was itself stopped has reports waiting.
		if late := now.Sub(last); late < 2*mutedTick {
			m.muteSilent(now)
		}
		last = now
	}
}

// muteSilent mutes the hosts that sent nothing for mutedAfter, and unmutes the others.
func (m *Manager) muteSilent(now time.Time) {
	for _, s := range m.sessions.all() {
		if s.role != lb.RoleHost || s.ctx.Err() != nil {
			continue
		}
		silent := now.Sub(time.Unix(0, s.heardAt.Load())) >= mutedAfter
		if !m.muteHealth(s, silent) {
			continue
		}
		if silent {
			m.o.Log.Warn("host silent: verdicts taken back", "host", s.name, "after", mutedAfter)
		} else {
			m.o.Log.Info("host reports again: verdicts count", "host", s.name)
		}
	}
}

// tendSilence withdraws the verdicts of hosts that have no stream at any member, until ctx ends.
// Muxes then probe their servers themselves. It runs at the leader, because the leader has the
// sessions of all members.
func (m *Manager) tendSilence(ctx context.Context) {
	since := map[string]time.Time{}
	for {
		now := m.o.Clock.Now()
		silent := map[string]bool{}
		for host, stream := range m.verdicts.streams() {
			if m.sessions.get(host) != nil {
				continue
			}
			silent[host] = true
			if since[host].IsZero() {
				since[host] = now
			}
			if now.Sub(since[host]) >= silentFor {
				m.takeBack(host, stream)
			}
		}
		for host := range since {
			if !silent[host] {
				delete(since, host)
			}
		}
		select {
		case <-m.o.Clock.After(silenceTick):
		case <-ctx.Done():
			return
		}
	}
}

// forgetUnsaid withdraws, after silentFor, the verdicts of hosts that the leader did not report
// although it has sent its full state. Such hosts fell silent while this member had no relay to the
// leader. before maps the hosts to the streams of their last reports when the relay began.
func (m *Manager) forgetUnsaid(ctx context.Context, before map[string]uint64) {
	select {
	case <-m.o.Clock.After(silentFor):
	case <-ctx.Done():
		return // the next leader reports it
	}
	for host, stream := range before {
		if m.sessions.here(host) == nil {
			m.takeBack(host, stream)
		}
	}
}

// takeBack withdraws from all muxes the verdicts that a host sent on a stream, and on those before
// it.
func (m *Manager) takeBack(host string, stream uint64) {
	s := &session{name: host, role: lb.RoleHost, number: stream}
	if !m.forgetHealth(s) {
		return
	}
	m.o.Log.Warn("host is silent: muxes check its servers", "host", host)
}

// streams returns the hosts that have sent verdicts, each with the stream of the last report.
func (v *verdicts) streams() map[string]uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make(map[string]uint64, len(v.byHost))
	for host, verdict := range v.byHost {
		out[host] = verdict.stream
	}
	return out
}
