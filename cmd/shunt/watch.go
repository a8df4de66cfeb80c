package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// watch prints the objects of a kind, then every change, until the context ends or the manager goes.
func (g *globals) watch(ctx context.Context, w io.Writer, kind lb.Kind, name string) error {
	c, err := g.connect()
	if err != nil {
		return err
	}
	stream, err := c.Watch(ctx, connect.NewRequest(&apiv1.WatchRequest{Kind: string(kind), Name: name}))
	if err != nil {
		return c.explain(err)
	}
	defer stream.Close()
	printer := &watchPrinter{w: w, format: g.format}
	for stream.Receive() {
		if err := printer.print(stream.Msg()); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	if err := stream.Err(); err != nil {
		return c.explain(err)
	}
	return fmt.Errorf("manager %s: ended the watch", c.server)
}

// watchPrinter prints changes as they come: table rows after one heading, YAML documents, or one JSON object a line.
type watchPrinter struct {
	w       io.Writer
	format  format
	started bool
}

// event is a change as JSON.
type event struct {
	Event    string          `json:"event"` // upserted, deleted, synced
	Revision int64           `json:"revision"`
	Kind     string          `json:"kind,omitempty"`
	Name     string          `json:"name,omitempty"`
	Object   json.RawMessage `json:"object,omitempty"`
}

func (p *watchPrinter) print(r *apiv1.WatchResponse) error {
	if !p.started && p.format == formatTable {
		if err := p.row([]string{"EVENT", "REVISION", "NAME"}); err != nil {
			return err
		}
	}
	p.started = true
	for _, o := range r.GetUpserted() {
		if err := p.upserted(r.GetRevision(), o); err != nil {
			return err
		}
	}
	for _, ref := range r.GetDeleted() {
		if err := p.deleted(r.GetRevision(), ref); err != nil {
			return err
		}
	}
	if r.GetSynced() && p.format == formatJSON {
		return p.line(event{Event: "synced", Revision: r.GetRevision()})
	}
	return nil
}

func (p *watchPrinter) upserted(revision int64, o *apiv1.Object) error {
	object, err := domainObject(o)
	if err != nil {
		return err
	}
	switch p.format {
	case formatYAML:
		_, err := fmt.Fprintf(p.w, "---\n%s", lb.Marshal(object))
		return err
	case formatJSON:
		text, err := rawJSON(o)
		if err != nil {
			return err
		}
		return p.line(event{"upserted", revision, string(object.Kind()), object.ObjectName(), text})
	}
	return p.row([]string{"upserted", fmt.Sprint(revision), lb.Ref(object.Kind(), object.ObjectName())})
}

func (p *watchPrinter) deleted(revision int64, ref *apiv1.ObjectRef) error {
	name := lb.Ref(lb.Kind(ref.GetKind()), ref.GetName())
	switch p.format {
	case formatYAML:
		_, err := fmt.Fprintf(p.w, "---\n# deleted: %s\n", name)
		return err
	case formatJSON:
		return p.line(event{Event: "deleted", Revision: revision, Kind: ref.GetKind(), Name: ref.GetName()})
	}
	return p.row([]string{"deleted", fmt.Sprint(revision), name})
}

// row has fixed columns: rows that are still to come cannot widen those that were printed.
func (p *watchPrinter) row(cells []string) error {
	_, err := fmt.Fprintf(p.w, "%-8s  %-8s  %s\n", cells[0], cells[1], cells[2])
	return err
}

func (p *watchPrinter) line(e event) error {
	text, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err = fmt.Fprintf(p.w, "%s\n", text)
	return err
}
