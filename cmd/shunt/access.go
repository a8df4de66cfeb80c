package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

func newAccess(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "access", Short: "Let people and programs in, by access tokens and certificates"}
	cmd.AddCommand(newAccessCreate(g), newAccessCertificate(g), newAccessList(g), newAccessRevoke(g))
	return cmd
}

func newAccessCreate(g *globals) *cobra.Command {
	var (
		a    accessFlags
		file string
	)
	cmd := &cobra.Command{
		Use:   "create --name NAME --role admin|viewer|tenant [-f FILE]",
		Short: "Make an access token for a person or a program",
		Long: "Create writes a token to a new file, which nobody else may read, or prints it on standard output, and nothing else;\n" +
			"nobody can read it again. A client configuration names its file as tokenFile, or $SHUNT_TOKEN_FILE does.",
		Example: "  shunt access create --name ci --role tenant --tenant shop --ttl 24h -f ci.token\n" +
			"  SHUNT_TOKEN_FILE=ci.token shunt get services",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.check(); err != nil {
				return err
			}
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				request := &apiv1.CreateAccessRequest{Name: a.name, Role: a.role, Tenant: a.tenant, Ttl: durationpb.New(a.ttl)}
				if file != "" {
					return intoNewFile(file, func() (string, error) {
						response, err := c.CreateAccess(ctx, connect.NewRequest(request))
						if err != nil {
							return "", err
						}
						return response.Msg.GetToken(), nil
					})
				}
				response, err := c.CreateAccess(ctx, connect.NewRequest(request))
				if err != nil {
					return err
				}
				if g.format != formatTable {
					out := accessFields(response.Msg.GetAccess())
					out["token"] = response.Msg.GetToken()
					return g.format.encode(cmd.OutOrStdout(), out)
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), response.Msg.GetToken())
				return err
			})
		},
	}
	a.register(cmd.Flags(), "how long the token is good, at most 365 days", 24*time.Hour)
	registerTokenFile(cmd.Flags(), &file)
	return cmd
}

// accessFlags holds the name, role, tenant and lifetime of new access.
type accessFlags struct {
	name, role, tenant string
	ttl                time.Duration
}

func (a *accessFlags) register(fl *pflag.FlagSet, ttl string, def time.Duration) {
	fl.StringVar(&a.name, "name", "", "whom it is for, as the audit log will say")
	fl.StringVar(&a.role, "role", "", "admin, viewer or tenant")
	fl.StringVar(&a.tenant, "tenant", "", "tenant whose objects it is for, with --role tenant; its Tenant object must exist")
	fl.DurationVar(&a.ttl, "ttl", def, ttl)
}

func (a *accessFlags) check() error {
	switch {
	case a.name == "":
		return usagef("--name is missing, must say whom it is for")
	case a.role != "admin" && a.role != "viewer" && a.role != "tenant":
		return usagef("--role: %q: must be admin, viewer or tenant", a.role)
	case (a.role == "tenant") != (a.tenant != ""):
		return usagef("--tenant: %q: must be given with --role tenant, and only then", a.tenant)
	case a.ttl <= 0:
		return usagef("--ttl: %s: must be more than 0", a.ttl)
	}
	return nil
}

func newAccessList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the access tokens and certificates that have not expired, without secrets",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				response, err := c.ListAccess(ctx, connect.NewRequest(&apiv1.ListAccessRequest{}))
				if err != nil {
					return err
				}
				rows, all := [][]string{{"ID", "VIA", "NAME", "ROLE", "TENANT", "CREATED", "EXPIRES"}}, []map[string]string{}
				for _, a := range response.Msg.GetAccess() {
					f := accessFields(a)
					rows, all = append(rows, []string{f["id"], f["via"], f["name"], f["role"], f["tenant"], f["created"], f["expires"]}), append(all, f)
				}
				if g.format != formatTable {
					return g.format.encode(cmd.OutOrStdout(), all)
				}
				return table(cmd.OutOrStdout(), rows)
			})
		},
	}
}

func newAccessRevoke(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID|nodes/NAME|managers/NAME|tokens/ID",
		Short: "Revoke an access token, a certificate, a join token, or all certificates of a node or manager",
		Long: "Revoke ends an access token or a person's certificate (ID, as `shunt access list` shows it), a join token (tokens/ID; the audit\n" +
			"log has the ids), or all certificates that a node or a manager has, at once, with the streams that were opened with them.\n" +
			"A revoked node drops its plan; its object stays, and it joins again with a new token. A manager must not be a member any\n" +
			"more: `shunt member remove` revokes its certificates too. The certificate of a manager whose machine was captured is not\n" +
			"all that it had: see docs/ops/members.md.",
		Example: "  shunt access revoke 0f3a5b7c9d1e2f40\n" +
			"  shunt access revoke nodes/host1",
		Args: needs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				if _, err := c.RevokeAccess(ctx, connect.NewRequest(revocation(args[0]))); err != nil {
					return err
				}
				what := args[0]
				if !strings.Contains(what, "/") {
					what = "access " + what
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s revoked\n", what)
				return err
			})
		},
	}
}

// revocation returns the request to revoke the access that arg names.
func revocation(arg string) *apiv1.RevokeAccessRequest {
	for prefix, kind := range map[string]string{"nodes/": "node", "managers/": "manager", "tokens/": "token"} {
		if name, ok := strings.CutPrefix(arg, prefix); ok {
			return &apiv1.RevokeAccessRequest{Id: name, Kind: kind}
		}
	}
	return &apiv1.RevokeAccessRequest{Id: arg}
}

// accessFields returns the fields of an access token or a certificate for JSON output. It omits the
// tenant if there is none.
func accessFields(a *apiv1.Access) map[string]string {
	out := map[string]string{
		"id": a.GetId(), "via": cmp.Or(a.GetVia(), "token"), "name": a.GetName(), "role": a.GetRole(),
		"created": a.GetCreated().AsTime().Format(time.RFC3339), "expires": a.GetExpires().AsTime().Format(time.RFC3339),
	}
	if a.GetTenant() != "" {
		out["tenant"] = a.GetTenant()
	}
	return out
}
