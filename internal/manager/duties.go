package manager

import "context"

// duty is a controller of the leading manager. It runs in every term of this manager and ends with
// the term, whose ctx it gets. An error other than the end of ctx ends the term.
type duty struct {
	name string
	run  func(ctx context.Context) error
}

// duties returns all controllers of a term.
func (m *Manager) duties() []duty {
	out := []duty{
		{"sweep", func(ctx context.Context) error { m.sweepAll(ctx); return nil }},
		{"silence", func(ctx context.Context) error { m.tendSilence(ctx); return nil }},
		{"schema", m.raiseSchema},
		{"access", func(ctx context.Context) error { m.sweepAccess(ctx); return nil }},
	}
	out = append(out, duty{"snat", m.leaseSNAT})
	if !m.o.keepNothing {
		out = append(out, m.eventDuty(), m.auditDuty())
		out = append(out, duty{"keeper", func(ctx context.Context) error { newKeeper(m).run(ctx); return nil }})
		out = append(out, duty{"health events", func(ctx context.Context) error { m.healthEvents.run(ctx); return nil }})
		out = append(out, duty{"pace events", func(ctx context.Context) error { newPaceEvents(m).run(ctx); return nil }})
		out = append(out, duty{"agent events", func(ctx context.Context) error { newAgentEvents(m).run(ctx); return nil }})
		out = append(out, duty{"manager events", func(ctx context.Context) error { m.tellManagers(ctx); return nil }})
		out = append(out, duty{"keys", func(ctx context.Context) error { newKeyDuty(m).run(ctx); return nil }})
		out = append(out, duty{"ca", func(ctx context.Context) error { newCADuty(m).run(ctx); return nil }})
		out = append(out, duty{"tunnels", func(ctx context.Context) error { newTunnelDuty(m).run(ctx); return nil }})
		out = append(out, duty{"placement", func(ctx context.Context) error { newPlacement(m).run(ctx); return nil }})
	}
	return out
}
