package manager

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

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

// Who may call what. A procedure that is not here may be called by nobody.
var (
	readers = []string{pki.RoleAdmin, pki.RoleViewer}
	admins  = []string{pki.RoleAdmin}
	nodes   = []string{string(lb.RoleMux), string(lb.RoleHost)}
	rights  = map[string][]string{
		shuntv1connect.ManagerApplyProcedure:        admins,
		shuntv1connect.ManagerDeleteProcedure:       admins,
		shuntv1connect.ManagerCreateTokenProcedure:  admins,
		shuntv1connect.ManagerGetProcedure:          readers,
		shuntv1connect.ManagerWatchProcedure:        readers,
		shuntv1connect.ManagerStatusProcedure:       readers,
		shuntv1connect.ManagerTraceProcedure:        readers,
		shuntv1connect.ManagerFlowsProcedure:        readers,
		shuntv1connect.ManagerVersionProcedure:      readers,
		shuntv1connect.ManagerEventsProcedure:       readers,
		shuntv1connect.ManagerAuditProcedure:        admins,
		shuntv1connect.ManagerCreateAccessProcedure: admins,
		shuntv1connect.ManagerListAccessProcedure:   admins,
		shuntv1connect.ManagerRevokeAccessProcedure: admins,
		shuntv1connect.ManagerMembersProcedure:      readers,
		shuntv1connect.ManagerRemoveMemberProcedure: admins,
		shuntv1connect.ManagerBackupProcedure:       admins,
		shuntv1connect.NodeProtocolSyncProcedure:    nodes,
		// A node without a certificate shows a token instead.
		shuntv1connect.NodeProtocolJoinProcedure: append([]string{""}, nodes...),
	}
)

// Limits of what strangers may make the manager wait for and keep.
const (
	// bodyTimeout: the largest request at 10 Mbit/s takes 54 seconds.
	bodyTimeout = time.Minute
	// joinTimeout and maxJoinBytes: a token and a certificate request are less than a kilobyte.
	joinTimeout  = 10 * time.Second
	maxJoinBytes = 16 << 10
)

// gate finds out who calls and checks rights before anything of a request's body is read.
type gate struct {
	view   *view
	next   http.Handler
	errors *connect.ErrorWriter
}

// ServeHTTP implements http.Handler.
func (g gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	procedure := r.URL.Path
	if _, known := rights[procedure]; !known {
		http.NotFound(w, r)
		return
	}
	var id identity
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		id.cert = r.TLS.PeerCertificates[0]
		id.name, id.role = pki.Identity(id.cert)
	}
	if err := g.check(id, procedure); err != nil {
		g.refuse(w, r, err)
		return
	}
	if timeout := readTimeout(procedure); timeout > 0 {
		// A connection without deadlines is one of a test; Serve's have them.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(timeout))
	}
	if procedure == shuntv1connect.NodeProtocolJoinProcedure {
		r.Body = http.MaxBytesReader(w, r.Body, maxJoinBytes)
	}
	g.next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), identityKey{}, id)))
}

// readTimeout bounds the reading of a request; 0 is for streams.
func readTimeout(procedure string) time.Duration {
	switch procedure {
	case shuntv1connect.NodeProtocolSyncProcedure, shuntv1connect.ManagerWatchProcedure, shuntv1connect.ManagerEventsProcedure,
		shuntv1connect.ManagerBackupProcedure:
		return 0
	case shuntv1connect.NodeProtocolJoinProcedure:
		return joinTimeout
	}
	return bodyTimeout
}

// refuse answers in the caller's protocol.
func (g gate) refuse(w http.ResponseWriter, r *http.Request, err *connect.Error) {
	if g.errors.IsSupported(r) {
		_ = g.errors.Write(w, r, err) // the caller is gone
		return
	}
	status := http.StatusForbidden
	if err.Code() == connect.CodeUnauthenticated {
		status = http.StatusUnauthorized
	}
	http.Error(w, err.Message(), status)
}

// check refuses callers without the right, and certificates of deleted nodes.
func (g gate) check(id identity, procedure string) *connect.Error {
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
