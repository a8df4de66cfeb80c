package main

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/pki"
)

func newAccessCertificate(g *globals) *cobra.Command {
	var (
		a    accessFlags
		file string
	)
	cmd := &cobra.Command{
		Use:   "certificate --name NAME --role admin|viewer|tenant [-f FILE]",
		Short: "Make a client configuration with a certificate for a person",
		Long: "Certificate makes a key, lets the manager sign a certificate for it, and writes a client configuration with both: to a new\n" +
			"file that nobody else may read, or to standard output. The key is nowhere else; the manager never sees it.\n\n" +
			"The certificate is not renewed: when it expires is told, and every command that uses it warns for the last 14 days, or\n" +
			"the second half of its life when that is less.",
		Example: "  shunt access certificate --name alice --role admin -f alice.yaml\n" +
			"  shunt access certificate --name bob --role tenant --tenant shop --ttl 24h -f bob.yaml\n" +
			"  shunt --config alice.yaml get services",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.check(); err != nil {
				return err
			}
			return g.call(cmd.Context(), func(ctx context.Context, c *client) error {
				write := cmd.OutOrStdout().Write
				if file != "" {
					out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
					if err != nil {
						return fmt.Errorf("--file: must be a new file: %w", err)
					}
					defer out.Close()
					write = out.Write
				}
				config, made, err := c.certificate(ctx, &a)
				if err == nil && (file != "" || g.format == formatTable) {
					_, err = write(config)
				}
				switch {
				case err != nil && file != "":
					os.Remove(file)
					return err
				case err != nil:
					return err
				case g.format != formatTable:
					out := accessFields(made)
					if file == "" {
						out["config"] = string(config)
					}
					return g.format.encode(cmd.OutOrStdout(), out)
				case file == "":
					// Standard output is for the configuration.
					g.note(fmt.Sprintf("access %s, good until %s", made.GetId(), made.GetExpires().AsTime().Format(time.RFC3339)))
				default:
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s written: access %s, good until %s\n", file, made.GetId(), made.GetExpires().AsTime().Format(time.RFC3339))
				}
				return err
			})
		},
	}
	a.register(cmd.Flags(), "how long the certificate is good, at most 365 days", 30*24*time.Hour)
	cmd.Flags().StringVarP(&file, "file", "f", "", "new `file` for the configuration, with mode 0600 (default: standard output)")
	return cmd
}

// certificate requests a certificate and returns a new client configuration for the managers of c.
func (c *client) certificate(ctx context.Context, a *accessFlags) ([]byte, *apiv1.Access, error) {
	key, err := pki.NewKey()
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: a.name}}, key)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate request: %w", err)
	}
	request := &apiv1.CreateCertificateRequest{Name: a.name, Role: a.role, Tenant: a.tenant, Ttl: durationpb.New(a.ttl), Csr: csr}
	response, err := c.CreateCertificate(ctx, connect.NewRequest(request))
	if err != nil {
		return nil, nil, err
	}
	secret, err := pki.KeyPEM(key)
	if err != nil {
		return nil, nil, err
	}
	comment := fmt.Sprintf("Client configuration of %s, who is %s: whoever reads this file may do the same. Good until %s.",
		a.name, a.rights(), response.Msg.GetAccess().GetExpires().AsTime().Format(time.RFC3339))
	return pki.ClientConfig(comment, c.config.Server, []byte(c.config.CA), response.Msg.GetCertificate(), secret), response.Msg.GetAccess(), nil
}

// rights returns the role as text.
func (a *accessFlags) rights() string {
	if a.role == "tenant" {
		return "of tenant " + a.tenant
	}
	return a.role
}
