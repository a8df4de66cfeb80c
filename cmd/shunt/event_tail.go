package main

import (
	"maps"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// eventOverlap is how far back a stream of events begins again. Events have the time of when they happened first and are
// written up to a minute later, so that one that is new may be older than one that was told.
const eventOverlap = 10 * time.Minute

// eventTail knows which events were told, so that a stream that begins again tells only the others.
type eventTail struct {
	newest time.Time
	// told are the events of the last eventOverlap, by content; before are those of former streams.
	told, before map[string]time.Time
}

// resume is the request of the next stream.
func (t *eventTail) resume(request *apiv1.EventsRequest) *apiv1.EventsRequest {
	t.forget()
	t.before = maps.Clone(t.told)
	next := proto.CloneOf(request)
	if from := t.newest.Add(-eventOverlap); !t.newest.IsZero() && from.After(request.GetSince().AsTime()) {
		next.Since = timestamppb.New(from)
	}
	return next
}

// fresh notes an event; false: a former stream told it.
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

// forget drops what no stream will bring again.
func (t *eventTail) forget() {
	oldest := t.newest.Add(-eventOverlap)
	maps.DeleteFunc(t.told, func(_ string, at time.Time) bool { return at.Before(oldest) })
}
