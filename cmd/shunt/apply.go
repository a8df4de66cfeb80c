package main

import (
	"context"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
)

// applying holds the flags that apply and diff share: the files and their source.
type applying struct {
	files  []string
	source string
	force  bool
}

// register adds the flags. takes is the help text of --force.
func (a *applying) register(flags *pflag.FlagSet, takes string) {
	flags.StringArrayVarP(&a.files, "file", "f", nil, "file, directory of .yaml files, or - for standard input (repeatable)")
	flags.StringVar(&a.source, "source", defaultSource, "whose words the files are: 1 to 63 of a-z, 0-9 and -; files of any other than "+defaultSource+" may hold parts of objects")
	flags.BoolVar(&a.force, "force", false, takes)
}

// defaultSource is the source if --source is not given.
const defaultSource = "apply"

// request reads the files. Fields that are absent from them stay with other sources or the
// defaults.
func (a *applying) request(cmd *cobra.Command, dryRun bool) (*apiv1.ApplyRequest, *documents, error) {
	docs, err := readDocuments(cmd.Context(), cmd.InOrStdin(), a.files, lb.Extent(a.source != defaultSource))
	if err != nil {
		return nil, nil, err
	}
	request := &apiv1.ApplyRequest{DryRun: dryRun, Source: a.source, Force: a.force}
	for _, d := range docs.all {
		request.Objects = append(request.Objects, convert.Written(d))
	}
	return request, docs, nil
}

func newApply(g *globals) *cobra.Command {
	var (
		a             applying
		dryRun, prune bool
	)
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Create or change objects",
		Long: "Apply makes the stored objects say what the files write: all of them, or none when there is any fault. Applying\n" +
			"twice changes nothing.\n\n" +
			"Fields belong to the source that wrote them. A field that the source wrote before and does not write now goes back\n" +
			"to its default; what others wrote, shunt drain for instance, stays. A different value for a field of another source\n" +
			"is refused, unless --force takes the field over.",
		Example: "  shunt apply -f web.yaml\n" +
			"  shunt apply -f services/ -f nodes.yaml\n" +
			"  cat web.yaml | shunt apply -f - --dry-run\n" +
			"  shunt apply -f weights.yaml --source scaler",
		RunE: func(cmd *cobra.Command, _ []string) error {
			request, docs, err := a.request(cmd, dryRun)
			if err != nil {
				return err
			}
			request.Prune = prune
			return docs.locate(g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				response, err := c.Apply(ctx, connect.NewRequest(request))
				if err != nil {
					return err
				}
				g.warn(cmd.ErrOrStderr(), response.Msg.GetWarnings())
				return g.printApplied(cmd.OutOrStdout(), response.Msg, dryRun)
			}))
		},
	}
	a.register(cmd.Flags(), "take fields over that others wrote with another value, and take host Nodes away from backends that are on them")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only tell what would change")
	cmd.Flags().BoolVar(&prune, "prune", false, "the files are everything that the source says: delete what it alone made and they do not have, and take back what it said of other objects")
	return cmd
}

// change is one change in the output.
type change struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Action string `json:"action"`
}

// actions holds the output texts of the actions on an object.
var actions = map[apiv1.Change_Action]string{
	apiv1.Change_ACTION_UNCHANGED: "unchanged",
	apiv1.Change_ACTION_CREATED:   "created",
	apiv1.Change_ACTION_UPDATED:   "updated",
	apiv1.Change_ACTION_DELETED:   "deleted",
}

// warn prints warnings for table output, one a line. JSON and YAML output contain them in the
// response.
func (g *globals) warn(w io.Writer, warnings []string) {
	if g.format != formatTable {
		return
	}
	for _, text := range warnings {
		fmt.Fprintln(w, "warning: "+text)
	}
}

// printChanges prints one line per object: "services/web created".
func (g *globals) printChanges(w io.Writer, revision int64, changes []*apiv1.Change, dryRun bool) error {
	return g.printApplied(w, &apiv1.ApplyResponse{Revision: revision, Changes: changes}, dryRun)
}

// printApplied prints the changes as printChanges does, and the warnings of an apply.
func (g *globals) printApplied(w io.Writer, response *apiv1.ApplyResponse, dryRun bool) error {
	changes := response.GetChanges()
	if g.format != formatTable {
		out := struct {
			Revision int64    `json:"revision"`
			DryRun   bool     `json:"dryRun"`
			Changes  []change `json:"changes"`
			Warnings []string `json:"warnings,omitempty"`
		}{response.GetRevision(), dryRun, []change{}, response.GetWarnings()}
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
