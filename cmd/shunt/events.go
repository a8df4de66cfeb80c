package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// kindManager is the kind of events about managers, which are not objects.
const kindManager = lb.Kind("Manager")

// isEvents reports whether a KIND of the command line means events.
func isEvents(kind string) bool {
	kind = strings.ToLower(kind)
	return kind == "events" || kind == "event"
}

// eventsRequest reads KIND or KIND/NAME. It requests all events if object is empty.
func eventsRequest(object string, since time.Duration) (*apiv1.EventsRequest, error) {
	request := &apiv1.EventsRequest{}
	if since < 0 {
		return nil, usagef("--since: %s: must be 0 or longer", since)
	}
	if since > 0 {
		request.Since = timestamppb.New(time.Now().Add(-since))
	}
	if object == "" {
		return request, nil
	}
	word, name, _ := strings.Cut(object, "/")
	kind := kindManager
	if w := strings.ToLower(word); w != "manager" && w != "managers" {
		var err error
		if kind, err = parseKind(word); err != nil {
			return nil, usagef("events of %q: must be KIND or KIND/NAME, such as services/web; KIND is an object's or manager", object)
		}
	}
	request.Kind, request.Name = string(kind), name
	return request, nil
}

// events reads events, oldest first.
func (c *client) events(ctx context.Context, request *apiv1.EventsRequest) (out []*apiv1.Event, err error) {
	err = c.servers.persist(ctx, true, func() error {
		out, err = c.eventsOnce(ctx, request)
		return err
	})
	return out, err
}

func (c *client) eventsOnce(ctx context.Context, request *apiv1.EventsRequest) ([]*apiv1.Event, error) {
	stream, err := c.Events(ctx, connect.NewRequest(request))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	var out []*apiv1.Event
	for stream.Receive() {
		out = append(out, stream.Msg().GetEvents()...)
	}
	return out, stream.Err()
}

// getEvents prints events.
func (c *client) getEvents(ctx context.Context, g *globals, w io.Writer, request *apiv1.EventsRequest) error {
	events, err := c.events(ctx, request)
	if err != nil {
		return err
	}
	if g.format != formatTable {
		texts, err := rawJSONs(events)
		if err != nil {
			return err
		}
		return g.format.encode(w, texts)
	}
	rows := [][]string{{"TIME", "SEVERITY", "OBJECT", "REASON", "COUNT", "MESSAGE"}}
	for _, e := range events {
		rows = append(rows, eventRow(e))
	}
	return table(w, rows)
}

func eventRow(e *apiv1.Event) []string {
	return []string{
		e.GetTime().AsTime().Format(time.RFC3339), e.GetSeverity(), lb.Ref(lb.Kind(e.GetKind()), e.GetName()), e.GetReason(),
		fmt.Sprint(e.GetCount()), e.GetMessage() + becauseText(e),
	}
}

// becauseText returns why the first of an event's backends changed, as reported by the node that
// detected it.
func becauseText(e *apiv1.Event) string {
	for _, c := range e.GetChanges() {
		if c.GetWords() != "" {
			return fmt.Sprintf(" (%s at %s: %s)", backendText(c.GetDip(), c.GetDipPort()), c.GetNode(), c.GetWords())
		}
	}
	return ""
}

// followEvents prints past events and then new ones until ctx ends. It survives the loss of
// managers: see follow.
func (g *globals) followEvents(ctx context.Context, w io.Writer, note func(string), request *apiv1.EventsRequest) error {
	c, err := g.connect()
	if err != nil {
		return err
	}
	request.Follow = true
	if g.format == formatTable {
		fmt.Fprintf(w, "%-20s  %-8s  %-24s  %-18s  %-5s  %s\n", "TIME", "SEVERITY", "OBJECT", "REASON", "COUNT", "MESSAGE")
	}
	tail := &eventTail{}
	return c.follow(ctx, note, func(begun func()) error {
		stream, err := c.Events(ctx, connect.NewRequest(tail.resume(request)))
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
			begun()
			for _, e := range stream.Msg().GetEvents() {
				if !tail.fresh(e) {
					continue
				}
				if err := g.printEvent(w, e); err != nil {
					return err
				}
			}
		}
		return stream.Err()
	})
}

// printEvent prints a row of fixed columns, a YAML document, or one JSON object a line.
func (g *globals) printEvent(w io.Writer, e *apiv1.Event) error {
	if g.format == formatTable {
		r := eventRow(e)
		_, err := fmt.Fprintf(w, "%-20s  %-8s  %-24s  %-18s  %-5s  %s\n", r[0], r[1], r[2], r[3], r[4], r[5])
		return err
	}
	text, err := rawJSON(e)
	if err != nil {
		return err
	}
	if g.format == formatYAML {
		if _, err := fmt.Fprintln(w, "---"); err != nil {
			return err
		}
		return g.format.encode(w, text)
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// describedEvents is how many events describe shows.
const describedEvents = 10

// lastEvents returns the newest events of an object. It is no error if a manager keeps no events or
// denies them to the caller.
func (c *client) lastEvents(ctx context.Context, kind lb.Kind, name string) ([]*apiv1.Event, error) {
	events, err := c.events(ctx, &apiv1.EventsRequest{Kind: string(kind), Name: name})
	switch connect.CodeOf(err) {
	case connect.CodeUnimplemented, connect.CodePermissionDenied:
		return nil, nil
	}
	return events[max(0, len(events)-describedEvents):], err
}

// events writes the object's events.
func (d *description) events(events []*apiv1.Event) {
	rows := [][]string{{"TIME", "SEVERITY", "REASON", "COUNT", "MESSAGE"}}
	for _, e := range events {
		row := eventRow(e)
		rows = append(rows, append(row[:2:2], row[3:]...))
	}
	d.section("Events", rows)
}
