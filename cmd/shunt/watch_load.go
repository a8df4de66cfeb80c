package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// loadWatchPace is the poll interval of `get load --watch`.
const loadWatchPace = time.Second

// isLoad reports whether a KIND of the command line means load.
func isLoad(kind string) bool { return kind == "load" || kind == "loads" }

// noService is no valid name of a service. It selects no members.
const noService = "-"

// watchLoad prints the load of backends, then its changes, until ctx ends. It survives the loss of
// managers: see follow.
func (g *globals) watchLoad(ctx context.Context, w io.Writer, service string) error {
	c, err := g.connect()
	if err != nil {
		return err
	}
	p := loadPrinter{w: w, format: g.format, told: map[string]loadTold{}}
	return c.follow(ctx, g.note, func(begun func()) error {
		if service != "" {
			if _, err := c.fetch(ctx, lb.KindService, service); err != nil {
				return err
			}
		}
		for first := true; ; first = false {
			status, err := c.ask(ctx, connect.NewRequest(&apiv1.StatusRequest{LoadOf: cmp.Or(service, everyService), MembersOf: noService, Shares: true}))
			if err != nil {
				return err
			}
			if first {
				begun()
			}
			if err := p.print(loadView(status, service)); err != nil {
				return err
			}
			select {
			case <-time.After(loadWatchPace):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

// loadPrinter prints changes of load one by one: table rows after one heading, YAML documents, or
// one JSON object a line.
type loadPrinter struct {
	w       io.Writer
	format  format
	started bool
	// told holds the printed record of each backend that still exists.
	told map[string]loadTold
}

// loadTold is a printed record. text is its row without its age and its share.
type loadTold struct {
	record loadRecord
	row    []string
	text   string
}

// loadChange is a change in JSON and YAML output.
type loadChange struct {
	Event string `json:"event"` // upserted or deleted
	loadRecord
}

// print prints the differences from the last call.
func (p *loadPrinter) print(v view) error {
	if !p.started && p.format == formatTable {
		if err := p.row("EVENT", v.rows[0]); err != nil {
			return err
		}
	}
	p.started = true
	gone := maps.Clone(p.told)
	for i, r := range v.records.([]loadRecord) {
		row := v.rows[i+1]
		key, text := backendKey(r.endpointKey, r.DIP, r.DIPPort), fmt.Sprint(row[3:7])
		delete(gone, key)
		if old, known := p.told[key]; known && old.text == text {
			continue
		}
		p.told[key] = loadTold{r, row, text}
		if err := p.change("upserted", r, row); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(gone)) {
		delete(p.told, key)
		if err := p.change("deleted", gone[key].record, gone[key].row); err != nil {
			return err
		}
	}
	return nil
}

func (p *loadPrinter) change(event string, r loadRecord, row []string) error {
	switch p.format {
	case formatYAML:
		if _, err := fmt.Fprintln(p.w, "---"); err != nil {
			return err
		}
		return p.format.encode(p.w, loadChange{event, r})
	case formatJSON:
		text, err := json.Marshal(loadChange{event, r})
		if err != nil {
			return fmt.Errorf("encode output: %w", err)
		}
		_, err = fmt.Fprintf(p.w, "%s\n", text)
		return err
	}
	return p.row(event, row)
}

// row has fixed columns, because later rows cannot widen printed ones.
func (p *loadPrinter) row(event string, cells []string) error {
	_, err := fmt.Fprintf(p.w, "%-8s  %-16s  %-28s  %-22s  %-6s  %-11s  %-6s  %-10s  %-6s  %-20s  %s\n",
		event, cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[6], cells[7], cells[8], cells[9])
	return err
}
