package manager

import (
	"context"
	"fmt"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// managerEvent records an event of a member.
func (m *Manager) managerEvent(name, reason, format string, args ...any) {
	m.event(&apiv1.Event{Kind: kindManager, Name: name, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// tellManagers records which members start and stop until ctx ends. A member that stopped while
// there was no leader is reported by the next one, because the journal has the members that were
// up.
func (m *Manager) tellManagers(ctx context.Context) {
	var known []string
	for {
		grown := m.view.next()
		if up := m.upManagers(); known == nil || !slices.Equal(up, known) {
			m.tellPresence()
			known = up
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return
		}
		// Every fold arrives here, and members start and stop less often.
		select {
		case <-m.o.Clock.After(eventPace):
		case <-ctx.Done():
			return
		}
	}
}

// tellPresence records the members that are up and those that no longer are. Their latch drops
// repeated events.
func (m *Manager) tellPresence() {
	up := m.upManagers()
	for _, member := range m.view.present() {
		m.managerEvent(member.GetName(), reasonManagerUp, "version %s at %s is up", member.GetVersion(), member.GetAddress())
	}
	for _, name := range m.events.latched(kindManager, latchPresence, reasonManagerUp) {
		if !slices.Contains(up, name) {
			m.managerEvent(name, reasonManagerDown, "is not up any more")
		}
	}
}

// upManagers returns the members that are up, sorted. This one is included even if its registration
// is not in the store yet.
func (m *Manager) upManagers() []string {
	out := []string{m.o.Name}
	for _, member := range m.view.present() {
		if member.GetName() != m.o.Name {
			out = append(out, member.GetName())
		}
	}
	slices.Sort(out)
	return out
}

// latched returns the objects of a kind whose latch has the reason, sorted.
func (l *eventLog) latched(kind string, of latch, reason string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for key, slots := range l.told {
		if key.kind == kind && slots[slotKey{of, ""}].reason == reason {
			out = append(out, key.name)
		}
	}
	slices.Sort(out)
	return out
}
