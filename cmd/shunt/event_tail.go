package main

import (
	"maps"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// eventOverlap is how far back a restarted event stream begins. Events have the time of their first
// occurrence and are written up to a minute later, so a new one may be older than a printed one.
const eventOverlap = 10 * time.Minute

// eventTail holds the printed events, so that a restarted stream prints only new ones.
type eventTail struct {
	newest time.Time
	// told holds the events of the last eventOverlap, by content. before holds those of previous
	// streams.
	told, before map[string]time.Time
}

// resume returns the request of the next stream.
func (t *eventTail) resume(request *apiv1.EventsRequest) *apiv1.EventsRequest {
	t.forget()
	t.before = maps.Clone(t.told)
	next := proto.CloneOf(request)
	if from := t.newest.Add(-eventOverlap); !t.newest.IsZero() && from.After(request.GetSince().AsTime()) {
		next.Since = timestamppb.New(from)
	}
	return next
}

// fresh records an event. It returns false if a previous stream delivered it.
func (t *eventTail) fresh(e *apiv1.Event) bool {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	if err != nil {
		return true
	}
	key, at := string(text), e.GetTime().AsTime()
	if _, old := t.before[key]; old {
		return false
	}
	if t.told == nil {
		t.told = map[string]time.Time{}
	}
	t.told[key] = at
	if at.After(t.newest) {
		t.newest = at
	}
	if len(t.told)%1024 == 0 {
		t.forget()
	}
	return true
}

// forget drops events that are too old for any stream to deliver again.
func (t *eventTail) forget() {
	oldest := t.newest.Add(-eventOverlap)
	maps.DeleteFunc(t.told, func(_ string, at time.Time) bool { return at.Before(oldest) })
}
