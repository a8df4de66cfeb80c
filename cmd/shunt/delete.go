package main

import (
	"context"
	"errors"
	"slices"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

func newDelete(g *globals) *cobra.Command {
	var (
		files                  []string
		source                 string
		dryRun, missing, force bool
	)
	cmd := &cobra.Command{
		Use:   "delete KIND NAME... | delete -f FILE|DIR|- | delete --source NAME",
		Short: "Delete objects, or all that a source says",
		Long: "Delete removes the named objects, or those of the files by kind and name: all of them, or none when there is\nany fault, for instance one that does not exist.\n\n" +
			"With --source it ends a source: objects that the source made, alone, are deleted, and what it said of others goes\n" +
			"back to what others say, or to the default.\n\n" +
			"A Node of role host is not deleted while backends that are not drained are on it, unless --force is given: nothing\n" +
			"takes the packets for them any more.",
		Example: "  shunt delete service web\n" +
			"  shunt delete -f services/ --dry-run\n" +
			"  shunt delete --source scaler --dry-run",
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("source") {
				return checkEnding(source, len(args) > 0 || len(files) > 0 || missing)
			}
			if len(files) > 0 && len(args) > 0 {
				return usagef("-f and KIND NAME exclude each other")
			}
			if len(files) == 0 && len(args) < 2 {
				return usagef("needs KIND NAME, -f FILE, or --source NAME")
			}
			return nil
		},
		ValidArgsFunction: g.completeNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if source != "" {
				return g.endSource(cmd, source, dryRun, force)
			}
			refs, docs, err := deleteRefs(cmd, files, args)
			if err != nil {
				return err
			}
			return docs.locate(g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				if missing {
					if refs, err = c.existing(ctx, refs); err != nil {
						return err
					}
					if len(refs) == 0 {
						return g.printChanges(cmd.OutOrStdout(), 0, nil, dryRun)
					}
				}
				response, err := c.Delete(ctx, connect.NewRequest(&apiv1.DeleteRequest{Objects: refs, DryRun: dryRun, Force: force}))
				if err != nil {
					return err
				}
				return g.printChanges(cmd.OutOrStdout(), response.Msg.GetRevision(), response.Msg.GetChanges(), dryRun)
			}))
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "file, directory of .yaml files, or - for standard input (repeatable)")
	cmd.Flags().StringVar(&source, "source", "", "source to end, such as that of a program that is no more")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only tell what would be done")
	cmd.Flags().BoolVar(&force, "force", false, "delete Nodes of role host although backends are on them")
	cmd.Flags().BoolVar(&missing, "ignore-not-found", false, "objects that do not exist are no fault")
	return cmd
}

// checkEnding refuses an invalid source, and other objects to delete in addition to it.
func checkEnding(source string, others bool) error {
	switch {
	case source == "":
		return usagef(`--source: "": must be the name of a source, 1 to 63 of a-z, 0-9 and -`)
	case others:
		return usagef("--source excludes KIND NAME, -f and --ignore-not-found")
	}
	return nil
}

// endSource withdraws every field that a source set.
func (g *globals) endSource(cmd *cobra.Command, source string, dryRun, force bool) error {
	return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
		response, err := c.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Source: source, Prune: true, DryRun: dryRun, Force: force}))
		if err != nil {
			return err
		}
		return g.printChanges(cmd.OutOrStdout(), response.Msg.GetRevision(), response.Msg.GetChanges(), dryRun)
	})
}

// deleteRefs returns the objects that the command line names.
func deleteRefs(cmd *cobra.Command, files, args []string) (refs []*apiv1.ObjectRef, docs *documents, err error) {
	if len(files) > 0 {
		if docs, err = readDocuments(cmd.Context(), cmd.InOrStdin(), files, lb.Whole); err != nil {
			return nil, nil, err
		}
		for _, d := range docs.all {
			refs = append(refs, &apiv1.ObjectRef{Kind: string(d.Object.Kind()), Name: d.Object.ObjectName()})
		}
		return refs, docs, nil
	}
	kind, err := parseKind(args[0])
	if err != nil {
		return nil, nil, err
	}
	names := slices.Clone(args[1:])
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		refs = append(refs, &apiv1.ObjectRef{Kind: string(kind), Name: name})
	}
	return refs, &documents{}, nil
}

// existing returns those of refs that are stored.
func (c *client) existing(ctx context.Context, refs []*apiv1.ObjectRef) ([]*apiv1.ObjectRef, error) {
	var out []*apiv1.ObjectRef
	for _, ref := range refs {
		response, err := c.Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: ref.GetKind(), Name: ref.GetName()}))
		var call *connect.Error
		if errors.As(err, &call) && call.Code() == connect.CodeNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(response.Msg.GetObjects()) > 0 {
			out = append(out, ref)
		}
	}
	return out, nil
}
