package manager

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// identity is who calls, by the client certificate. The zero identity has none.
type identity struct {
	name, role string
	cert       *x509.Certificate
}

type identityKey struct{}

func identityOf(ctx context.Context) identity {
	id, _ := ctx.Value(identityKey{}).(identity)
	return id
}

// withIdentity puts the verified client certificate's identity into the request's context.
func withIdentity(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var id identity
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			id.cert = r.TLS.PeerCertificates[0]
			id.name, id.role = pki.Identity(id.cert)
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), identityKey{}, id)))
	})
}

// Who may call what. A procedure that is not here may be called by nobody.
var (
	readers = []string{pki.RoleAdmin, pki.RoleViewer}
	admins  = []string{pki.RoleAdmin}
	nodes   = []string{string(lb.RoleMux), string(lb.RoleHost)}
	rights  = map[string][]string{
		shuntv1connect.ManagerApplyProcedure:       admins,
		shuntv1connect.ManagerDeleteProcedure:      admins,
		shuntv1connect.ManagerCreateTokenProcedure: admins,
		shuntv1connect.ManagerGetProcedure:         readers,
		shuntv1connect.ManagerWatchProcedure:       readers,
		shuntv1connect.ManagerStatusProcedure:      readers,
		shuntv1connect.ManagerTraceProcedure:       readers,
		shuntv1connect.ManagerVersionProcedure:     readers,
		shuntv1connect.NodeProtocolSyncProcedure:   nodes,
		// A node without a certificate shows a token instead.
		shuntv1connect.NodeProtocolJoinProcedure: append([]string{""}, nodes...),
	}
)

// guard is the interceptor that checks rights.
type guard struct{ view *view }

// check refuses callers without the right, and certificates of deleted nodes.
func (g guard) check(ctx context.Context, procedure string) error {
	id := identityOf(ctx)
	if !slices.Contains(rights[procedure], id.role) {
		if id.cert == nil {
			return connect.NewError(connect.CodeUnauthenticated, errors.New("a client certificate is required"))
		}
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s (role %q) may not call %s", id.name, id.role, procedure))
	}
	// Sync answers a deleted node itself; Join judges the token, which may be a new one.
	own := procedure == shuntv1connect.NodeProtocolSyncProcedure || procedure == shuntv1connect.NodeProtocolJoinProcedure
	if id.cert != nil && !own && g.view.revokedCert(id.cert) {
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("node %s was deleted: it needs a new join token", id.name))
	}
	return nil
}

// WrapUnary implements connect.Interceptor.
func (g guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := g.check(ctx, req.Spec().Procedure); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (g guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (g guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := g.check(ctx, conn.Spec().Procedure); err != nil {
			return err
		}
		return next(ctx, conn)
	}
}
