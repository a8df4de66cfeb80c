package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// watch prints the objects of a kind, then every change, until the context ends. It survives the
// loss of managers: see follow.
func (g *globals) watch(ctx context.Context, w io.Writer, note func(string), kind lb.Kind, name string) error {
	c, err := g.connect()
	if err != nil {
		return err
	}
	printer := &watchPrinter{w: w, format: g.format, told: map[watched]int64{}}
	return c.follow(ctx, note, func(first func()) error {
		stream, err := c.Watch(ctx, connect.NewRequest(&apiv1.WatchRequest{Kind: string(kind), Name: name}))
		if err != nil {
			return err
		}
		defer stream.Close()
		for whole := true; stream.Receive(); whole = false {
			if whole {
				first()
			}
			if err := printer.print(stream.Msg(), whole); err != nil {
				return err
			}
		}
		return stream.Err()
	})
}

// watchPrinter prints changes one by one: table rows after one heading, YAML documents, or one JSON
// object a line.
type watchPrinter struct {
	w       io.Writer
	format  format
	started bool
	// told holds the printed objects that are not deleted, with their revisions.
	told map[watched]int64
}

// watched identifies an object.
type watched struct {
	kind lb.Kind
	name string
}

func compareWatched(a, b watched) int {
	return strings.Compare(lb.Ref(a.kind, a.name), lb.Ref(b.kind, b.name))
}

// event is a change as JSON.
type event struct {
	Event    string          `json:"event"` // upserted, deleted, synced
	Revision int64           `json:"revision"`
	Kind     string          `json:"kind,omitempty"`
	Name     string          `json:"name,omitempty"`
	Object   json.RawMessage `json:"object,omitempty"`
}

// print prints a response. The first response of a stream is whole: it holds every object, and
// print prints only the differences from earlier output.
func (p *watchPrinter) print(r *apiv1.WatchResponse, whole bool) error {
	if !p.started && p.format == formatTable {
		if err := p.row([]string{"EVENT", "REVISION", "NAME"}); err != nil {
			return err
		}
	}
	news := !p.started || !whole
	p.started = true
	gone := map[watched]bool{}
	if whole {
		for o := range p.told {
			gone[o] = true
		}
	}
	for _, o := range r.GetUpserted() {
		object, err := domainObject(o)
		if err != nil {
			return err
		}
		id := watched{object.Kind(), object.ObjectName()}
		delete(gone, id)
		if revision, told := p.told[id]; whole && told && revision == o.GetRevision() {
			continue
		}
		p.told[id], news = o.GetRevision(), true
		if err := p.upserted(r.GetRevision(), o, object); err != nil {
			return err
		}
	}
	for _, ref := range r.GetDeleted() {
		gone[watched{lb.Kind(ref.GetKind()), ref.GetName()}] = true
	}
	for _, id := range slices.SortedFunc(maps.Keys(gone), compareWatched) {
		delete(p.told, id)
		news = true
		if err := p.deleted(r.GetRevision(), id); err != nil {
			return err
		}
	}
	if r.GetSynced() && news && p.format == formatJSON {
		return p.line(event{Event: "synced", Revision: r.GetRevision()})
	}
	return nil
}

func (p *watchPrinter) upserted(revision int64, o *apiv1.Object, object lb.Object) error {
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

func (p *watchPrinter) deleted(revision int64, id watched) error {
	name := lb.Ref(id.kind, id.name)
	switch p.format {
	case formatYAML:
		_, err := fmt.Fprintf(p.w, "---\n# deleted: %s\n", name)
		return err
	case formatJSON:
		return p.line(event{Event: "deleted", Revision: revision, Kind: string(id.kind), Name: id.name})
	}
	return p.row([]string{"deleted", fmt.Sprint(revision), name})
}

// row has fixed columns, because later rows cannot widen printed ones.
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
