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

// Pace at which the leader writes events.
const (
	// eventPace is the minimum time between two transactions, unless eventBatch events wait.
	eventPace  = time.Second
	eventBatch = 256
	// eventLimit bounds the pending events. One Apply may create 20,000 services; 500 bytes each
	// are 16 MB.
	eventLimit = 1 << 15
	// eventShare bounds the pending events of a group, so that there is always room for the event
	// that counts the others.
	eventShare = eventLimit - eventBatch
	// Equal events of one object are written five times, and then once a minute with their number.
	equalEvents     = 5
	equalEventsPace = time.Minute
	// maxEventMessage bounds a message in bytes, because an error of a node may be long.
	maxEventMessage = 1000
)

// eventLog holds the events of a term until they are written.
type eventLog struct {
	funnel *funnel[*apiv1.Event]

	mu sync.Mutex
	// open reports whether this manager leads.
	open bool
	told told
	// withheld is the set of parts whose last event is reasonVIPsWithheld. It is indexed because
	// each status of a node looks it up.
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

// eventGroup returns the group of an event: its tenant, or the services and policies without a
// tenant, or all else, such as nodes.
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

// note adds an event. It never blocks.
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

// last returns the last event of a latch, or empty tidings if there is none.
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

// withheldAt returns the objects with a part whose last event is reasonVIPsWithheld.
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

// parts returns the parts of objects whose last event of a latch has the given reason; see
// told.parts.
func (l *eventLog) parts(of latch, reason string) []objectPart {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told.parts(of, reason)
}

// event adds an event about an object. It must not be called with view.mu held. A manager that does
// not lead drops the event. event takes ownership of e, whose time, severity and count may be left
// out, and the tenant if the object is stored.
func (m *Manager) event(e *apiv1.Event) {
	m.complete(e)
	m.events.note(e, m.o.Clock.Now())
}

// objectEvent adds an event about an object.
func (m *Manager) objectEvent(kind lb.Kind, name, reason, format string, args ...any) {
	m.event(&apiv1.Event{Kind: string(kind), Name: name, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// eventDuty returns the controller that writes the events of a term.
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

// write writes one batch and returns the time of the next call.
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
		// A page that fails to be written stays pending, with those behind it.
		err = errors.Join(err, w.pages.add(ctx, now, &apiv1.StoredEvents{Events: page}))
	}
	return next, err
}

// maxPageBytes is the size of a page of events without its last event. An event about all backends
// of a large endpoint has 300 KB.
const maxPageBytes = 1 << 20

// eventPages splits events into pages of one class each, with at most one event beyond
// maxPageBytes.
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

// complete sets the tenant of an event from its object.
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
