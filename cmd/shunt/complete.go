package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/lb"
)

// completeNames completes KIND, then the names of that kind that the manager has.
func (g *globals) completeNames(extraKinds ...string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return slices.Concat(kindPlurals, extraKinds), cobra.ShellCompDirectiveNoFileComp
		}
		if isEvents(args[0]) {
			return prefixed("services/", g.names(cmd.Context(), lb.KindService)), cobra.ShellCompDirectiveNoFileComp
		}
		if slices.Contains(extraKinds, args[0]) {
			args = []string{"services"}
		}
		kind, err := parseKind(args[0])
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return g.names(cmd.Context(), kind), cobra.ShellCompDirectiveNoFileComp
	}
}

// names lists the names of a kind for completion. It returns none if no manager can be reached.
func (g *globals) names(ctx context.Context, kind lb.Kind) []string {
	var names []string
	_ = g.call(ctx, func(ctx context.Context, c *client) error {
		objects, err := c.fetch(ctx, kind, "")
		for _, o := range objects {
			names = append(names, objectName(o))
		}
		return err
	})
	return names
}

func prefixed(prefix string, names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = prefix + name
	}
	return out
}
