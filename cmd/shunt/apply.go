package main

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

func newApply(g *globals) *cobra.Command {
	var (
		files  []string
		dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Create or change objects",
		Long:  "Apply makes the stored objects equal to those of the files: all of them, or none when there is any fault.\nApplying twice changes nothing.",
		Example: "  shunt apply -f web.yaml\n" +
			"  shunt apply -f services/ -f nodes.yaml\n" +
			"  cat web.yaml | shunt apply -f - --dry-run",
		RunE: func(cmd *cobra.Command, _ []string) error {
			objects, err := readObjects(cmd.Context(), cmd.InOrStdin(), files)
			if err != nil {
				return err
			}
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				return c.apply(ctx, g, cmd.OutOrStdout(), objects, dryRun)
			})
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "file, directory of .yaml files, or - for standard input (repeatable)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only tell what would change")
	return cmd
}

// apply stores objects and prints what changed.
func (c *client) apply(ctx context.Context, g *globals, w io.Writer, objects []lb.Object, dryRun bool) error {
	request := &apiv1.ApplyRequest{Objects: wireObjects(objects), DryRun: dryRun}
	response, err := c.Apply(ctx, connect.NewRequest(request))
	if err != nil {
		return err
	}
	return g.printChanges(w, response.Msg.GetRevision(), response.Msg.GetChanges(), dryRun)
}

// change is a change as it is printed.
type change struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Action string `json:"action"`
}

// actions are the words for what was done to an object.
var actions = map[apiv1.Change_Action]string{
	apiv1.Change_ACTION_UNCHANGED: "unchanged",
	apiv1.Change_ACTION_CREATED:   "created",
	apiv1.Change_ACTION_UPDATED:   "updated",
	apiv1.Change_ACTION_DELETED:   "deleted",
}

// printChanges prints one line per object: "services/web created".
func (g *globals) printChanges(w io.Writer, revision int64, changes []*apiv1.Change, dryRun bool) error {
	if g.format != formatTable {
		out := struct {
			Revision int64    `json:"revision"`
			DryRun   bool     `json:"dryRun"`
			Changes  []change `json:"changes"`
		}{revision, dryRun, []change{}}
		for _, ch := range changes {
			out.Changes = append(out.Changes, change{ch.GetKind(), ch.GetName(), actions[ch.GetAction()]})
		}
		return g.format.encode(w, out)
	}
	suffix := ""
	if dryRun {
		suffix = " (dry run)"
	}
	for _, ch := range changes {
		if _, err := fmt.Fprintf(w, "%s %s%s\n", lb.Ref(lb.Kind(ch.GetKind()), ch.GetName()), actions[ch.GetAction()], suffix); err != nil {
			return err
		}
	}
	return nil
}
