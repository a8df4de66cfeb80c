package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/fields"
	"github.com/shuntlb/shunt/internal/lb"
)

func newDiff(g *globals) *cobra.Command {
	var (
		a        applying
		exitCode bool
	)
	cmd := &cobra.Command{
		Use:   "diff -f FILE|DIR|-",
		Short: "Show what apply would change",
		Long: "Diff asks the manager what that apply would do and prints it field by field, nothing when nothing would change:\n" +
			"what comes (+), goes (-), changes (~), and what stays because others own it (=). After a value in brackets stands who\n" +
			"else owns the field, or that the value is the default. The exit code is 0 either way; with --exit-code it is 1 when\n" +
			"something would change. With -o json and yaml each object has a unified diff of canonical YAML too.",
		Example: "  shunt diff -f web.yaml\n" +
			"  shunt diff -f services/ --exit-code || echo differs\n" +
			"  shunt diff -f weights.yaml --source scaler --force",
		RunE: func(cmd *cobra.Command, _ []string) error {
			request, docs, err := a.request(cmd, true)
			if err != nil {
				return err
			}
			return docs.locate(g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				differs, err := c.diff(ctx, g, cmd.OutOrStdout(), cmd.ErrOrStderr(), request)
				if err == nil && differs && exitCode {
					return errSilent
				}
				return err
			}))
		},
	}
	a.register(cmd.Flags(), "as if apply were given it: show what would be taken over")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 when something would change")
	return cmd
}

// objectDiff is the pending change of one object.
type objectDiff struct {
	change
	Fields []fieldDiff `json:"fields"`
	Diff   string      `json:"diff"`
}

// fieldDiff is the pending change of one field.
type fieldDiff struct {
	Field string `json:"field"`
	// Change is "added", "removed", "changed", "owned" if only its owners change, or "kept" if
	// other sources keep it.
	Change string   `json:"change"`
	Before string   `json:"before,omitempty"`
	After  string   `json:"after,omitempty"`
	Owners []string `json:"owners"` // afterwards; a default has no owner
	// Taken lists the sources that lose the field because of force.
	Taken []string `json:"taken,omitempty"`
}

// diff prints the changes that the request would make and returns whether there are any. Warnings
// go to warnings.
func (c *client) diff(ctx context.Context, g *globals, w, warnings io.Writer, request *apiv1.ApplyRequest) (bool, error) {
	response, err := c.Apply(ctx, connect.NewRequest(request))
	if err != nil {
		return false, err
	}
	g.warn(warnings, response.Msg.GetWarnings())
	diffs := []objectDiff{}
	for _, ch := range response.Msg.GetChanges() {
		if ch.GetAction() == apiv1.Change_ACTION_UNCHANGED {
			continue
		}
		text, err := changeDiff(ch)
		if err != nil {
			return false, err
		}
		diffs = append(diffs, objectDiff{change{ch.GetKind(), ch.GetName(), actions[ch.GetAction()]}, fieldDiffs(ch, request.GetSource()), text})
	}
	if g.format != formatTable {
		return len(diffs) > 0, g.format.encode(w, diffs)
	}
	for _, d := range diffs {
		if _, err := fmt.Fprintf(w, "%s would be %s\n", lb.Ref(lb.Kind(d.Kind), d.Name), d.Action); err != nil {
			return false, err
		}
		for _, f := range d.Fields {
			if _, err := fmt.Fprintf(w, "  %s\n", f.line(request.GetSource())); err != nil {
				return false, err
			}
		}
	}
	return len(diffs) > 0, nil
}

// side is an object before or after the change: its fields and their owners.
type side struct {
	fields map[string]fields.Field
	order  []string
	owners map[string][]string
}

func sideOf(o *apiv1.Object) side {
	s := side{fields: map[string]fields.Field{}, owners: map[string][]string{}}
	if o == nil {
		return s
	}
	for _, f := range convert.Schema.List(convert.Content(o)) {
		s.fields[f.Path] = f
		s.order = append(s.order, f.Path)
	}
	for _, own := range o.GetOwners() {
		for _, path := range own.GetFields() {
			s.owners[path] = append(s.owners[path], own.GetSource())
			s.note(path)
		}
	}
	return s
}

// note adds a message that a source owns and of which only defaults set fields.
func (s *side) note(path string) {
	if _, listed := s.fields[path]; listed {
		return
	}
	first := slices.IndexFunc(s.order, func(p string) bool { return strings.HasPrefix(p, path+".") })
	if first < 0 {
		return
	}
	s.fields[path] = fields.Field{Path: path}
	s.order = slices.Insert(s.order, first, path)
}

// fieldDiffs lists the changes of the fields, removed ones last. For a new object and for new items
// it lists the owned fields, without defaults.
func fieldDiffs(ch *apiv1.Change, source string) []fieldDiff {
	before, after := sideOf(ch.GetBefore()), sideOf(ch.GetAfter())
	out := []fieldDiff{}
	for _, path := range after.order {
		now, owners := after.fields[path], after.owners[path]
		was, there := before.fields[path]
		d := fieldDiff{Field: path, After: now.Text(), Owners: owners}
		switch {
		case !there && len(owners) > 0:
			d.Change = "added"
		case !there:
			continue
		case !was.Same(now):
			d.Change, d.Before = "changed", was.Text()
			d.Taken = slices.DeleteFunc(slices.Clone(before.owners[path]), func(o string) bool {
				return o == source || slices.Contains(owners, o)
			})
		case !slices.Equal(owners, before.owners[path]):
			d.Change, d.Before = "owned", was.Text()
		case len(owners) > 0 && !slices.Contains(owners, source):
			d.Change, d.Before = "kept", was.Text()
		default:
			continue
		}
		out = append(out, d)
	}
	for _, path := range before.order {
		if _, stays := after.fields[path]; !stays && len(before.owners[path]) > 0 {
			out = append(out, fieldDiff{Field: path, Change: "removed", Before: before.fields[path].Text(), Owners: []string{}})
		}
	}
	return out
}

// line returns the field for table output. source is the source of the request.
func (f fieldDiff) line(source string) string {
	others := slices.DeleteFunc(slices.Clone(f.Owners), func(o string) bool { return o == source })
	who := strings.Join(others, ", ")
	text := func(mark, value string, notes ...string) string {
		line := mark + " " + f.Field
		if value != "" {
			line += ": " + value
		}
		if note := strings.Join(slices.DeleteFunc(notes, func(n string) bool { return n == "" }), "; "); note != "" {
			line += " (" + note + ")"
		}
		return line
	}
	switch f.Change {
	case "added":
		return text("+", f.After, who)
	case "removed":
		return text("-", f.Before)
	case "kept":
		return text("=", f.After, who)
	case "owned":
		note := "default, owned by nobody now"
		if len(f.Owners) > 0 {
			note = "owned by " + strings.Join(f.Owners, " and ") + " now"
		}
		return text("=", f.After, note)
	}
	switch {
	case len(f.Owners) == 0:
		who = "default"
	case len(f.Taken) > 0:
		who = "taken from " + strings.Join(f.Taken, ", ")
	}
	return text("~", f.Before+" → "+f.After, who)
}

// changeDiff returns the unified diff of one object. It is empty if nothing changes.
func changeDiff(ch *apiv1.Change) (string, error) {
	before, err := objectYAML(ch.GetBefore())
	if err != nil {
		return "", err
	}
	after, err := objectYAML(ch.GetAfter())
	if err != nil {
		return "", err
	}
	ref := lb.Ref(lb.Kind(ch.GetKind()), ch.GetName())
	from, to := ref+" (stored)", ref+" (wanted)"
	if before == "" {
		from = "/dev/null"
	}
	if after == "" {
		to = "/dev/null"
	}
	return udiff.Unified(from, to, before, after), nil
}
