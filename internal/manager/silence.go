package manager

import (
	"context"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

const (
	// silentFor is how long a host may have no stream at any member before its verdicts are taken back: long enough for an
	// agent that restarts, a stream that goes to the next manager, and a member that relays anew.
	silentFor = 3 * time.Second
	// silenceTick is how often it is looked who is silent.
	silenceTick = 500 * time.Millisecond
	// mutedAfter is how long a host with an open stream may send nothing until its verdicts are taken back; hosts report every second. With mutedTick
	// it makes 2 s, from when muxes check the host's backends themselves. It needs no margin for reconnecting: the verdicts count again with
	// the next report.
	mutedAfter = 1750 * time.Millisecond
	// mutedTick is the time between two looks at hosts with open streams.
	mutedTick = 250 * time.Millisecond
)

// tendMuted takes the verdicts of hosts back whose streams end here and that send nothing, until the member stops.
func (m *Manager) tendMuted() {
	for last := m.o.Clock.Now(); ; {
		select {
		case <-m.o.Clock.After(mutedTick):
		case <-m.ctx.Done():
			return
		}
		now := m.o.Clock.Now()
		// A manager that stood still itself has reports waiting.
		if late := now.Sub(last); late < 2*mutedTick {
			m.muteSilent(now)
		}
		last = now
	}
}

// muteSilent mutes the hosts that sent nothing for mutedAfter, and ends that for the others.
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

// tendSilence takes back what hosts said that no member hears any more, until ctx ends: muxes then check their servers
// themselves. It is the leader's duty: it knows the nodes of all members.
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

// forgetUnsaid takes back what hosts said of which a leader that told all that it knows said nothing, before and within silentFor:
// they fell silent while it was not heard here. before are the hosts, with the streams of their last words, when its relay began.
func (m *Manager) forgetUnsaid(ctx context.Context, before map[string]uint64) {
	select {
	case <-m.o.Clock.After(silentFor):
	case <-ctx.Done():
		return // the next leader tells it
	}
	for host, stream := range before {
		if m.sessions.here(host) == nil {
			m.takeBack(host, stream)
		}
	}
}

// takeBack lets all muxes forget what a host said on a stream, and on those before it.
func (m *Manager) takeBack(host string, stream uint64) {
	s := &session{name: host, role: lb.RoleHost, number: stream}
	if !m.forgetHealth(s) {
		return
	}
	m.o.Log.Warn("host is silent: muxes check its servers", "host", host)
}

// streams are the hosts that said something, each with the stream of the last word.
func (v *verdicts) streams() map[string]uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make(map[string]uint64, len(v.byHost))
	for host, verdict := range v.byHost {
		out[host] = verdict.stream
	}
	return out
}
