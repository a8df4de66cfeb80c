package manager

import (
	"context"
	"crypto/x509"
	"fmt"
	"path"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// Ways in which callers authenticate.
const (
	viaCertificate = "certificate"
	viaToken       = "token"
	viaOIDC        = "oidc"
)

// identity identifies a caller. The zero identity is an unauthenticated caller.
type identity struct {
	name, role string
	// tenant is the tenant that role tenant acts for; it is never empty there.
	tenant string
	// via is how the caller authenticated; empty for unauthenticated callers.
	via string
	// from is the caller's address and port.
	from string
	// cert is the certificate of viaCertificate.
	cert *x509.Certificate
	// access is the id of an access token, or of a certificate that CreateCertificate made;
	// otherwise empty.
	access string
	// expires is when the credential expires; zero for unauthenticated callers.
	expires time.Time
	// forwarded reports that another manager, which does not lead, vouches for the identity.
	forwarded bool
}

// who returns the name of an identity in the audit log.
func (id identity) who() string {
	switch id.via {
	case "":
		return "nobody"
	case viaCertificate:
		return id.name
	}
	return id.via + " " + id.name
}

type identityKey struct{}

func identityOf(ctx context.Context) identity {
	id, _ := ctx.Value(identityKey{}).(identity)
	return id
}

func withIdentity(ctx context.Context, id identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// certified returns the identity in a verified client certificate.
func certified(cert *x509.Certificate, from string) identity {
	id := identity{via: viaCertificate, from: from, cert: cert, expires: cert.NotAfter}
	id.name, id.role = pki.Identity(cert)
	if id.role == pki.RoleTenant {
		id.tenant = pki.Tenant(cert)
	}
	if slices.Contains(accessRoles, id.role) {
		id.access = pki.PersonID(cert)
	}
	return id
}

// Roles that may call each procedure. No client may call a procedure that is not listed here. The
// filters select the parts of a response that a tenant gets; mayPut and mayDelete decide which
// objects it may write.
var (
	admins    = []string{pki.RoleAdmin}
	readers   = []string{pki.RoleAdmin, pki.RoleViewer}
	writers   = []string{pki.RoleAdmin, pki.RoleTenant}
	everybody = []string{pki.RoleAdmin, pki.RoleViewer, pki.RoleTenant}
	nodes     = []string{string(lb.RoleMux), string(lb.RoleHost)}
	managers  = []string{pki.RoleManager}
	rights    = map[string][]string{
		shuntv1connect.ManagerApplyProcedure:             writers,
		shuntv1connect.ManagerDeleteProcedure:            writers,
		shuntv1connect.ManagerGetProcedure:               everybody,
		shuntv1connect.ManagerWatchProcedure:             everybody,
		shuntv1connect.ManagerStatusProcedure:            everybody,
		shuntv1connect.ManagerTraceProcedure:             everybody,
		shuntv1connect.ManagerFlowsProcedure:             everybody,
		shuntv1connect.ManagerHealthOfProcedure:          everybody,
		shuntv1connect.ManagerAuditSNATProcedure:         readers,
		shuntv1connect.ManagerEventsProcedure:            everybody,
		shuntv1connect.ManagerVersionProcedure:           everybody,
		shuntv1connect.ManagerMembersProcedure:           readers,
		shuntv1connect.ManagerReleaseSNATProcedure:       admins,
		shuntv1connect.ManagerRotateKeysProcedure:        writers,
		shuntv1connect.ManagerRotateRingProcedure:        admins,
		shuntv1connect.ManagerRotateCAProcedure:          admins,
		shuntv1connect.ManagerListKeysProcedure:          everybody,
		shuntv1connect.ManagerQUICConfigProcedure:        writers,
		shuntv1connect.ManagerCreateTokenProcedure:       admins,
		shuntv1connect.ManagerCreateAccessProcedure:      admins,
		shuntv1connect.ManagerCreateCertificateProcedure: admins,
		shuntv1connect.ManagerListAccessProcedure:        admins,
		shuntv1connect.ManagerRevokeAccessProcedure:      admins,
		shuntv1connect.ManagerAuditProcedure:             admins,
		shuntv1connect.ManagerRemoveMemberProcedure:      admins,
		shuntv1connect.ManagerBackupProcedure:            admins,
		shuntv1connect.NodeProtocolSyncProcedure:         nodes,
		// A node or a manager without a certificate sends a join token instead.
		shuntv1connect.NodeProtocolJoinProcedure:    append([]string{""}, nodes...),
		shuntv1connect.MemberProtocolAdmitProcedure: {""},
		shuntv1connect.MemberProtocolRelayProcedure: managers,
	}
)

// tokenInBody reports whether a procedure accepts callers that authenticate with a join token in
// the request.
func tokenInBody(procedure string) bool { return slices.Contains(rights[procedure], "") }

// may returns an error for callers without the right to call a procedure, and nil for others.
func (id identity) may(procedure string) *connect.Error {
	switch {
	case id.via == "" && tokenInBody(procedure):
	case id.via == "":
		return errNobody
	// A certificate without a role is not an unauthenticated caller.
	case id.role == "" || !slices.Contains(rights[procedure], id.role):
		return denied("%s (role %q) may not call %s", id.who(), id.role, path.Base(procedure))
	case id.role == pki.RoleTenant && id.tenant == "":
		return denied("%s has role tenant, but names no tenant", id.who())
	}
	return nil
}

func denied(format string, args ...any) *connect.Error {
	return connect.NewError(connect.CodePermissionDenied, fmt.Errorf(format, args...))
}
