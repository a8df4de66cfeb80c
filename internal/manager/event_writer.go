package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// Pace of what the leader writes of events.
const (
	// eventPace is the least time between two transactions, unless eventBatch wait.
	eventPace  = time.Second
	eventBatch = 256
	// eventLimit: one Apply may create 20,000 services; 500 bytes each are 16 MB.
	eventLimit = 1 << 15
	// eventShare is how many of a group wait, so that there is always room for the event that counts the others.
	eventShare = eventLimit - eventBatch
	// Equal events of one object are told five times, and then once a minute with their number.
	equalEvents     = 5
	equalEventsPace = time.Minute
	// maxEventMessage bounds a message: an error of a node may be long.
	maxEventMessage = 1000
)

// eventLog is where events of a term wait until they are written.
type eventLog struct {
	funnel *funnel[*apiv1.Event]

	mu sync.Mutex
	// open: this manager leads.
	open bool
	told told
	// withheld are the parts of which reasonVIPsWithheld was last: each status of a node asks for them.
	withheld map[objectPart]bool
}

func newEventLog(name string) *eventLog {
	lost := func(e *apiv1.Event) *apiv1.Event {
		return &apiv1.Event{
			Time: e.GetTime(), Kind: kindManager, Name: name, Reason: reasonEventsLost, Severity: severityWarning, Count: e.GetCount(),
			Message: fmt.Sprintf("events were lost: more than %d waited to be written", eventLimit),
		}
	}
	return &eventLog{funnel: newFunnel(funnelRules[*apiv1.Event]{
		merge:    mergeEvents,
		overflow: func(e *apiv1.Event) (string, *apiv1.Event) { return reasonEventsLost, lost(e) },
		group:    eventGroup, share: eventShare,
		rest: func(group string, e *apiv1.Event) (string, *apiv1.Event) {
			out := lost(e)
			if tenant := e.GetTenant(); tenant != "" {
				out.Kind, out.Name, out.Tenant = string(lb.KindTenant), tenant, tenant
			}
			return reasonEventsLost + "\x00" + group, out
		},
		limit: eventLimit, batch: eventBatch, burst: equalEvents, pace: equalEventsPace,
	})}
}

// eventGroup returns whom an event is of: its tenant, or the operators' services and policies, or all that is no tenant's, as nodes are.
func eventGroup(e *apiv1.Event) string {
	switch {
	case e.GetTenant() != "":
		return "tenant " + e.GetTenant()
	case e.GetKind() == string(lb.KindService) || e.GetKind() == string(lb.KindPolicy):
		return "services"
	}
	return "machines"
}

// begin opens the log for a term.
func (l *eventLog) begin(t told) {
	l.funnel.drop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open, l.told, l.withheld = true, t, map[objectPart]bool{}
	for _, p := range t.parts(latchWithheld, reasonVIPsWithheld) {
		l.withheld[p] = true
	}
}

func (l *eventLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open, l.told, l.withheld = false, nil, nil
}

// note takes in an event; it never blocks.
func (l *eventLog) note(e *apiv1.Event, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open {
		return
	}
	r := reasonsByName[e.GetReason()]
	if r != nil && r.latch != "" && !r.repeats && l.told.of(e.GetKind(), e.GetName(), r.latch, partOf(r.latch, e.GetMessage())).reason == r.name {
		return
	}
	l.told.note(e)
	l.noteWithheld(e)
	if e.GetTime() == nil {
		e.Time = timestamppb.New(now)
	}
	if e.GetSeverity() == "" {
		e.Severity = severityInfo
		if r != nil {
			e.Severity = r.severity
		}
	}
	if len(e.GetMessage()) > maxEventMessage {
		e.Message = strings.ToValidUTF8(e.GetMessage()[:maxEventMessage], "") + "…"
	}
	e.Count = max(1, e.GetCount())
	part := ""
	if r != nil {
		part = partOf(r.latch, e.GetMessage())
	}
	l.funnel.put(strings.Join([]string{e.GetKind(), e.GetName(), e.GetReason(), part, shape(e.GetMessage())}, "\x00"), e)
}

// last is what was told last of a latch; empty when it is not known.
func (l *eventLog) last(kind, name string, of latch, part string) tidings {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told.of(kind, name, of, part)
}

// noteWithheld keeps withheld equal to told.parts of withheld VIPs over all objects.
func (l *eventLog) noteWithheld(e *apiv1.Event) {
	object := objectKey{e.GetKind(), e.GetName()}
	switch e.GetReason() {
	case reasonDeleted:
		maps.DeleteFunc(l.withheld, func(p objectPart, _ bool) bool { return p.objectKey == object })
	case reasonVIPsWithheld:
		l.withheld[objectPart{object, partOf(latchWithheld, e.GetMessage())}] = true
	case reasonVIPsFit:
		delete(l.withheld, objectPart{object, partOf(latchWithheld, e.GetMessage())})
	}
}

// withheldAt returns the objects with a part of which reasonVIPsWithheld was last.
func (l *eventLog) withheldAt(part string) (out []objectKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.withheld {
		if p.part == part {
			out = append(out, p.objectKey)
		}
	}
	return out
}

// parts are the parts of objects of which a reason was told last; see told.parts.
func (l *eventLog) parts(of latch, reason string) []objectPart {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told.parts(of, reason)
}

// event notes that something happened to an object. It must not be called with view.mu held; a manager that does not lead drops it. The event
// belongs to the callee: time, severity and count may be left out, and so may the tenant of an object that is stored.
func (m *Manager) event(e *apiv1.Event) {
	m.complete(e)
	m.events.note(e, m.o.Clock.Now())
}

// objectEvent notes something of an object.
func (m *Manager) objectEvent(kind lb.Kind, name, reason, format string, args ...any) {
	m.event(&apiv1.Event{Kind: string(kind), Name: name, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// eventDuty writes the events of a term.
func (m *Manager) eventDuty() duty {
	m.events.begin(m.view.events.lastTold())
	m.event(&apiv1.Event{Kind: kindManager, Name: m.o.Name, Reason: reasonLeaderChanged, Message: fmt.Sprintf("leads from epoch %d on", m.Epoch())})
	w := &eventWriter{pages: pages{m: m, journal: m.view.events.journal, bounds: eventBounds}}
	return duty{"events", func(ctx context.Context) error {
		defer m.events.end()
		m.events.funnel.drain(ctx, m.o, w.write)
		return nil
	}}
}

// eventWriter writes the events of a term. It belongs to one goroutine.
type eventWriter struct{ pages pages }

// write writes one batch and returns when it wants to be called again.
func (w *eventWriter) write(ctx context.Context, now time.Time) (next time.Time, err error) {
	m := w.pages.m
	if err := w.pages.flush(ctx, now); err != nil {
		return now.Add(eventPace), err
	}
	var events []*apiv1.Event
	var left int
	events, left, next = m.events.funnel.take(now, eventBatch)
	if left > 0 && next.IsZero() {
		next = now
	}
	if len(events) == 0 {
		return next, w.pages.sweep(ctx, now)
	}
	for _, e := range events {
		m.o.Log.Info(e.GetMessage(), "event", e.GetReason(), "object", lb.Ref(lb.Kind(e.GetKind()), e.GetName()), "count", e.GetCount())
	}
	for _, page := range w.eventPages(events) {
		// One that fails waits with those behind it.
		err = errors.Join(err, w.pages.add(ctx, now, &apiv1.StoredEvents{Events: page}))
	}
	return next, err
}

// maxPageBytes is how large a page of events is, but for the last of them: an event of all backends of a large endpoint has 300 KB.
const maxPageBytes = 1 << 20

// eventPages splits events into pages of one class each, with at most one event beyond maxPageBytes.
func (w *eventWriter) eventPages(events []*apiv1.Event) (out [][]*apiv1.Event) {
	for _, group := range byShare(events, eventShareOf, w.pages.bounds.of, w.pages.journal.heldBy) {
		begin, bytes := 0, 0
		for i, e := range group {
			if bytes += proto.Size(e); bytes >= maxPageBytes {
				out, begin, bytes = append(out, group[begin:i+1]), i+1, 0
			}
		}
		if begin < len(group) {
			out = append(out, group[begin:])
		}
	}
	return out
}

// complete fills in the tenant of an event's object.
func (m *Manager) complete(e *apiv1.Event) {
	if e.GetTenant() != "" || e.GetKind() != string(lb.KindService) {
		return
	}
	m.view.mu.RLock()
	defer m.view.mu.RUnlock()
	if s := m.view.state.Services[e.GetName()]; s != nil {
		e.Tenant = s.Tenant
	}
}
