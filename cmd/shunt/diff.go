package main

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/textdiff"
)

func newDiff(g *globals) *cobra.Command {
	var (
		files    []string
		exitCode bool
	)
	cmd := &cobra.Command{
		Use:   "diff -f FILE|DIR|-",
		Short: "Show what apply would change",
		Long: "Diff asks the manager what apply would do and prints it as a unified diff of canonical YAML, nothing when\n" +
			"nothing would change. The exit code is 0 either way; with --exit-code it is 1 when something would change.",
		Example: "  shunt diff -f web.yaml\n" +
			"  shunt diff -f services/ --exit-code || echo differs",
		RunE: func(cmd *cobra.Command, _ []string) error {
			objects, err := readObjects(cmd.Context(), cmd.InOrStdin(), files)
			if err != nil {
				return err
			}
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				differs, err := c.diff(ctx, g, cmd.OutOrStdout(), objects)
				if err == nil && differs && exitCode {
					return errSilent
				}
				return err
			})
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "file, directory of .yaml files, or - for standard input (repeatable)")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 when something would change")
	return cmd
}

// objectDiff is what would change in one object.
type objectDiff struct {
	change
	Diff string `json:"diff"`
}

// diff prints what applying objects would change and tells whether anything would.
func (c *client) diff(ctx context.Context, g *globals, w io.Writer, objects []lb.Object) (bool, error) {
	response, err := c.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: wireObjects(objects), DryRun: true}))
	if err != nil {
		return false, err
	}
	diffs := []objectDiff{}
	for _, ch := range response.Msg.GetChanges() {
		text, err := changeDiff(ch)
		if err != nil {
			return false, err
		}
		if text != "" {
			diffs = append(diffs, objectDiff{change{ch.GetKind(), ch.GetName(), actions[ch.GetAction()]}, text})
		}
	}
	if g.format != formatTable {
		return len(diffs) > 0, g.format.encode(w, diffs)
	}
	for _, d := range diffs {
		if _, err := fmt.Fprint(w, d.Diff); err != nil {
			return false, err
		}
	}
	return len(diffs) > 0, nil
}

// changeDiff is the unified diff of one object; empty when nothing changes.
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
	return textdiff.Unified(from, to, before, after), nil
}
