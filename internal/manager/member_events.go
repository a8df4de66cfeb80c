package manager

import (
	"context"
	"fmt"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// managerEvent notes something of a member.
func (m *Manager) managerEvent(name, reason, format string, args ...any) {
	m.event(&apiv1.Event{Kind: kindManager, Name: name, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// tellManagers tells which members come and go until ctx ends. Who went while nobody led is told by the next leader: the
// journal says who was up.
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
		// Every fold comes by here: members do not come and go so fast.
		select {
		case <-m.o.Clock.After(eventPace):
		case <-ctx.Done():
			return
		}
	}
}

// tellPresence tells who is up and who is not any more; what was told already is dropped by its latch.
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

// upManagers are the members that are up, ordered; this one is, whatever the store says of it yet.
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

// latched are the objects of a kind whose latch has the reason, ordered.
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
