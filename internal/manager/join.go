package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// nodeAPI serves the NodeProtocol service.
type nodeAPI struct{ m *Manager }

// Join implements the node protocol. It returns a certificate for a token, or for the certificate
// that it renews.
func (n nodeAPI) Join(ctx context.Context, req *connect.Request[apiv1.JoinRequest]) (*connect.Response[apiv1.JoinResponse], error) {
	name, role := req.Msg.GetName(), req.Msg.GetRole()
	if !nodeName.MatchString(name) {
		return nil, fault(invalid{[]lb.Violation{{Field: "name", Value: name, Allowed: allowedNodeName}}})
	}
	if !isNodeRole(role) {
		return nil, fault(invalid{[]lb.Violation{{Field: "role", Value: role, Allowed: "must be mux or host"}}})
	}
	cert, cas, err := n.issue(ctx, req.Msg)
	switch connect.CodeOf(err) {
	case connect.CodePermissionDenied, connect.CodeUnauthenticated, connect.CodeUnavailable:
		return nil, err
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	n.m.joined(ctx, name, role, req.Msg.GetToken() != "")
	n.m.o.Log.Info("node has a new certificate", "node", name, "role", role, "renewed", req.Msg.GetToken() == "")
	return connect.NewResponse(&apiv1.JoinResponse{Certificate: cert, Ca: cas[0], MoreCas: cas[1]}), nil
}

// issue admits a node and signs its certificate under t.writing, so that a node that is deleted
// concurrently gets a revoked certificate or none. cas holds the CA that signed, and the other
// valid CAs, as PEM.
func (n nodeAPI) issue(ctx context.Context, req *apiv1.JoinRequest) (cert []byte, cas [2][]byte, err error) {
	m := n.m
	t, err := m.lead(ctx)
	if err != nil {
		return nil, cas, connect.NewError(connect.CodeUnavailable, err)
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	if err := n.admit(ctx, t, req); err != nil {
		return nil, cas, err
	}
	now := m.o.Clock.Now()
	issued := later(now, m.view.revokedBefore(req.GetName()).Add(1))
	t.issued = later(t.issued, issued)
	generations := m.secrets.all()
	ca := generations[0].ca
	if cert, err = ca.SignNode(req.GetCsr(), req.GetName(), req.GetRole(), now, issued); err != nil {
		return nil, cas, err
	}
	cas[0] = ca.CertPEM()
	for _, g := range generations[1:] {
		cas[1] = append(cas[1], g.ca.CertPEM()...)
	}
	return cert, cas, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// admit refuses a request without a good token or certificate. t.writing is held.
func (n nodeAPI) admit(ctx context.Context, t *term, req *apiv1.JoinRequest) error {
	if req.GetToken() != "" {
		key, err := pki.RequestKeyHash(req.GetCsr())
		if err != nil {
			return err
		}
		return t.use(ctx, req.GetToken(), req.GetName(), req.GetRole(), key)
	}
	id := identityOf(ctx)
	if id.cert == nil {
		return connect.NewError(connect.CodeUnauthenticated, errors.New("a join token or a client certificate is required"))
	}
	if n.m.view.revokedCert(id.cert) {
		return connect.NewError(connect.CodePermissionDenied, errDeleted)
	}
	if id.name != req.GetName() || id.role != req.GetRole() {
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s %s may not join as %s %s", id.role, id.name, req.GetRole(), req.GetName()))
	}
	return nil
}
