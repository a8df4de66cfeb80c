package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/token"
)

// nodeAPI serves the NodeProtocol service.
type nodeAPI struct{ m *Manager }

// Join implements the node protocol: a certificate for a token, or for the certificate it renews.
func (n nodeAPI) Join(ctx context.Context, req *connect.Request[apiv1.JoinRequest]) (*connect.Response[apiv1.JoinResponse], error) {
	name, role := req.Msg.GetName(), req.Msg.GetRole()
	if !nodeName.MatchString(name) {
		return nil, fault(invalid{[]lb.Violation{{Field: "name", Value: name, Allowed: allowedNodeName}}})
	}
	if !isNodeRole(role) {
		return nil, fault(invalid{[]lb.Violation{{Field: "role", Value: role, Allowed: "must be mux or host"}}})
	}
	cert, err := n.issue(ctx, req.Msg)
	switch connect.CodeOf(err) {
	case connect.CodePermissionDenied, connect.CodeUnauthenticated, connect.CodeUnavailable:
		return nil, err
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	n.m.joined(ctx, name, role, req.Msg.GetToken() != "")
	n.m.o.Log.Info("node has a new certificate", "node", name, "role", role, "renewed", req.Msg.GetToken() == "")
	return connect.NewResponse(&apiv1.JoinResponse{Certificate: cert, Ca: n.m.secrets.ca.CertPEM()}), nil
}

// issue admits and signs as one step: a node that is deleted meanwhile gets a certificate that is revoked, or none.
func (n nodeAPI) issue(ctx context.Context, req *apiv1.JoinRequest) ([]byte, error) {
	m := n.m
	t, err := m.lead(ctx)
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	if err := n.admit(ctx, req); err != nil {
		return nil, err
	}
	now := m.o.Clock.Now()
	issued := later(now, m.view.revokedBefore(req.GetName()).Add(1))
	t.issued = later(t.issued, issued)
	return m.secrets.ca.SignNode(req.GetCsr(), req.GetName(), req.GetRole(), now, issued)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (n nodeAPI) admit(ctx context.Context, req *apiv1.JoinRequest) error {
	if req.GetToken() != "" {
		t, err := token.Parse(req.GetToken())
		if err == nil {
			err = n.m.view.admit(t, req.GetName(), req.GetRole(), n.m.o.Clock.Now())
		}
		if err != nil {
			return connect.NewError(connect.CodePermissionDenied, err)
		}
		return nil
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
