package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

func newAudit(g *globals) *cobra.Command {
	var (
		since   time.Duration
		refused bool
		limit   uint32
	)
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Tell who changed what, and who was refused",
		Long: "Audit lists the calls that changed something, each with who made it, from where, what it did and the revision, and\n" +
			"those that were refused, with the reason. Equal refusals are put together with their number. Only an admin may\n" +
			"read it.",
		Example: "  shunt audit --since 24h\n" +
			"  shunt audit --refused -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			request := &apiv1.AuditRequest{Refused: refused, Limit: limit}
			if since < 0 {
				return usagef("--since: %s: must be 0 or longer", since)
			}
			if since > 0 {
				request.Since = timestamppb.New(time.Now().Add(-since))
			}
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				response, err := c.Audit(ctx, connect.NewRequest(request))
				if err != nil {
					return err
				}
				entries := response.Msg.GetEntries()
				if g.format != formatTable {
					texts, err := rawJSONs(entries)
					if err != nil {
						return err
					}
					return g.format.encode(cmd.OutOrStdout(), texts)
				}
				rows := [][]string{{"TIME", "WHO", "ROLE", "FROM", "CALL", "REVISION", "COUNT", "WHAT"}}
				for _, e := range entries {
					rows = append(rows, auditRow(e))
				}
				return table(cmd.OutOrStdout(), rows)
			})
		},
	}
	cmd.Flags().DurationVar(&since, "since", 0, "only entries of this last time, such as 24h; 0: all that are kept")
	cmd.Flags().BoolVar(&refused, "refused", false, "only refusals")
	cmd.Flags().Uint32Var(&limit, "limit", 0, "entries at most, the newest; 0: 1000")
	return cmd
}

// auditedObjects bounds the objects in a row.
const auditedObjects = 3

func auditRow(e *apiv1.AuditEntry) []string {
	what := e.GetWhat()
	if more := len(what) - auditedObjects; more > 0 {
		what = append(what[:auditedObjects:auditedObjects], fmt.Sprintf("and %d more", more))
	}
	text, revision := strings.Join(what, ", "), ""
	if e.GetRevision() != 0 {
		revision = fmt.Sprint(e.GetRevision())
	}
	if e.GetRefused() != "" {
		text = strings.TrimSuffix("refused: "+e.GetRefused()+"; "+text, "; ")
	}
	return []string{e.GetTime().AsTime().Format(time.RFC3339), e.GetWho(), e.GetRole(), e.GetFrom(), e.GetCall(), revision, fmt.Sprint(e.GetCount()), text}
}
