package main

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// roleManager is the role of a further manager.
const roleManager = "manager"

func newToken(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Make join tokens for nodes"}
	cmd.AddCommand(newTokenCreate(g))
	return cmd
}

func newTokenCreate(g *globals) *cobra.Command {
	var (
		node, role string
		ttl        time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create --node NAME --role mux|host|manager",
		Short: "Make a token that lets one node or manager join",
		Long:  "Create prints a token on standard output, and nothing else. The node's agent, or the further manager, takes it with\n--token-file. It is good for that name and role only, until it expires. That of a manager gives all that managers have, the\nkey of the CA too: keep it as safe.",
		Example: "  shunt token create --node mux1 --role mux > mux1.token\n" +
			"  shunt token create --node host1 --role host --ttl 10m\n" +
			"  shunt token create --node m2 --role manager > m2.token",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case node == "":
				return usagef("--node is missing, must be the node's name")
			case role != string(lb.RoleMux) && role != string(lb.RoleHost) && role != roleManager:
				return usagef("--role: %q: must be mux, host or manager", role)
			case ttl <= 0:
				return usagef("--ttl: %s: must be more than 0", ttl)
			}
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				request := &apiv1.CreateTokenRequest{Node: node, Role: role, Ttl: durationpb.New(ttl)}
				response, err := c.CreateToken(ctx, connect.NewRequest(request))
				if err != nil {
					return err
				}
				if g.format != formatTable {
					return g.format.encode(cmd.OutOrStdout(), map[string]string{
						"token": response.Msg.GetToken(), "expires": response.Msg.GetExpires().AsTime().Format(time.RFC3339),
					})
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), response.Msg.GetToken())
				return err
			})
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "name of the node or manager")
	cmd.Flags().StringVar(&role, "role", "", "mux, host or manager")
	cmd.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long the token is good")
	return cmd
}
