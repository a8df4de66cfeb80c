package manager

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/internal/oidc"
)

// idToken returns the identity of an OpenID Connect ID token. cause is for the audit log only.
func (d *door) idToken(ctx context.Context, bearer string) (id identity, cause string, err *connect.Error) {
	who, wrong := d.oidc.Verify(ctx, bearer)
	switch {
	case errors.Is(wrong, oidc.ErrNotReady):
		return id, "", connect.NewError(connect.CodeUnavailable, wrong)
	case errors.Is(wrong, oidc.ErrNoRole):
		id = identity{name: who.Name, via: viaOIDC}
		return id, "", denied("%s has no role here: %w", id.who(), wrong)
	case wrong != nil:
		return id, "ID token: " + wrong.Error(), nil
	}
	return identity{name: who.Name, role: who.Role, tenant: who.Tenant, via: viaOIDC, expires: who.Expires}, "", nil
}
