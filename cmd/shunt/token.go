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

// roleManager is the role of an additional manager.
const roleManager = "manager"

// maxTokenUses is the manager's limit.
const maxTokenUses = 100

func newToken(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Make join tokens for nodes"}
	cmd.AddCommand(newTokenCreate(g))
	return cmd
}

// warnOfNoNode warns that a node will get an empty plan because no Node has its name, for example a
// misspelt one. An additional manager needs no object.
func (c *client) warnOfNoNode(ctx context.Context, g *globals, node, role string) {
	if role == roleManager {
		return
	}
	_, err := c.Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: string(lb.KindNode), Name: node}))
	if connect.CodeOf(err) == connect.CodeNotFound {
		g.note(fmt.Sprintf("there is no Node %s: what joins with this token has nothing to do until one is applied", node))
	}
}

func newTokenCreate(g *globals) *cobra.Command {
	var (
		node, role string
		file       string
		ttl        time.Duration
		uses       uint32
	)
	cmd := &cobra.Command{
		Use:   "create --node NAME --role mux|host|manager [-f FILE]",
		Short: "Make a token that lets one node or manager join",
		Long:  "Create writes a token to a new file, which nobody else may read, or prints it on standard output, and nothing else. The node's agent, or the further manager, takes it with\n--token-file. It is good for that name and role\nonly, until it expires, and for one machine: the key that joined with it first may use it again, other keys may not, up to --uses.\nThat of a manager gives all that managers have, the\nkey of the CA too: keep it as safe.",
		Example: "  shunt token create --node mux1 --role mux -f mux1.token\n" +
			"  shunt token create --node host1 --role host --ttl 10m\n" +
			"  shunt token create --node m2 --role manager -f m2.token",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case node == "":
				return usagef("--node is missing, must be the node's name")
			case role != string(lb.RoleMux) && role != string(lb.RoleHost) && role != roleManager:
				return usagef("--role: %q: must be mux, host or manager", role)
			case ttl <= 0:
				return usagef("--ttl: %s: must be more than 0", ttl)
			case uses < 1 || uses > maxTokenUses:
				return usagef("--uses: %d: must be 1 to %d", uses, maxTokenUses)
			}
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				c.warnOfNoNode(ctx, g, node, role)
				request := &apiv1.CreateTokenRequest{Node: node, Role: role, Ttl: durationpb.New(ttl), Uses: uses}
				if file != "" {
					return intoNewFile(file, func() (string, error) {
						response, err := c.CreateToken(ctx, connect.NewRequest(request))
						if err != nil {
							return "", err
						}
						return response.Msg.GetToken(), nil
					})
				}
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
	cmd.Flags().Uint32Var(&uses, "uses", 1, "how many machines may join with the token, one after the other: 1 to 100")
	cmd.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long the token is good")
	registerTokenFile(cmd.Flags(), &file)
	return cmd
}
