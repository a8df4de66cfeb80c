package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

func newMember(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "member", Short: "List and remove managers"}
	cmd.AddCommand(newMemberList(g), newMemberRemove(g))
	return cmd
}

func newMemberList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the managers",
		Long: "List prints every manager: the address of its API, the one where the other members of the store reach it, whether it\n" +
			"leads and answers, the store revision that it has seen, and how many nodes' streams end at it. The exit code is 1 when\none does not answer.",
		Example: "  shunt member list\n  shunt member list -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				response, err := c.Members(ctx, connect.NewRequest(&apiv1.MembersRequest{}))
				if err != nil {
					return err
				}
				if err := g.printManagers(cmd.OutOrStdout(), response.Msg); err != nil {
					return err
				}
				for _, m := range response.Msg.GetMembers() {
					if !m.GetHealthy() {
						return errSilent
					}
				}
				return nil
			})
		},
	}
}

func (g *globals) printManagers(w io.Writer, response *apiv1.MembersResponse) error {
	if g.format != formatTable {
		text, err := rawJSON(response)
		if err != nil {
			return err
		}
		return g.format.encode(w, text)
	}
	rows := [][]string{{"NAME", "ADDRESS", "PEER", "STATE", "REVISION", "NODES", "VERSION", "COMMIT", "ERROR"}}
	for _, m := range response.GetMembers() {
		rows = append(rows, []string{
			m.GetName(), m.GetAddress(), m.GetPeer(), managerState(m), strconv.FormatInt(m.GetRevision(), 10),
			strconv.FormatUint(uint64(m.GetNodes()), 10), m.GetVersion(), shortCommit(m.GetCommit()), m.GetError(),
		})
	}
	return table(w, rows)
}

func managerState(m *apiv1.Member) string {
	switch {
	case !m.GetHealthy():
		return "away"
	case m.GetLeader():
		return "leads"
	}
	return "up"
}

func newMemberRemove(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Take a manager out of the cluster",
		Long: "Remove takes a manager out for good; its process ends. It is refused when the others would be no majority. To come back,\n" +
			"the manager joins afresh, with an empty data directory.",
		Example: "  shunt member remove m3",
		Args:    needs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				if _, err := c.RemoveMember(ctx, connect.NewRequest(&apiv1.RemoveMemberRequest{Name: args[0]})); err != nil {
					return err
				}
				if g.format != formatTable {
					return g.format.encode(cmd.OutOrStdout(), map[string]string{"removed": args[0]})
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "manager %s is removed\n", args[0])
				return err
			})
		},
	}
}
