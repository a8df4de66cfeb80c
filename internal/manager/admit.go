package manager

import (
	"context"
	"errors"
	"net"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/store"
)

// memberAPI serves the MemberProtocol service.
type memberAPI struct{ m *Manager }

// Admit implements the member protocol. The response holds every secret of the cluster.
func (a memberAPI) Admit(ctx context.Context, req *connect.Request[apiv1.AdmitRequest]) (*connect.Response[apiv1.AdmitResponse], error) {
	m, in := a.m, req.Msg
	outside := m.o.Cluster == nil
	if faults := admitFaults(in, outside); len(faults) > 0 {
		return nil, fault(invalid{faults})
	}
	if err := m.view.caQuiet("join a manager"); err != nil {
		return nil, err
	}
	if err := m.useManagerToken(ctx, in); err != nil {
		return nil, err
	}
	cert, err := m.secrets.ca().SignManager(in.GetCsr(), in.GetName(), m.o.Clock.Now())
	if err != nil {
		return nil, fault(err)
	}
	out := &apiv1.AdmitResponse{Certificate: cert, Ca: m.secrets.ca().CertPEM(), StoreKey: m.secrets.storeKey(), Outside: outside}
	if out.CaKey, err = m.secrets.ca().KeyPEM(); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	if !outside {
		out.Cluster, err = m.o.Cluster.Add(ctx, in.GetName(), in.GetPeer())
		if errors.Is(err, store.ErrJoining) {
			return nil, connect.NewError(connect.CodeAborted, err)
		}
		if errors.Is(err, store.ErrMember) || errors.Is(err, store.ErrNoMajority) {
			return nil, connect.NewError(connect.CodeFailedPrecondition, err)
		}
		if err != nil {
			return nil, fault(err)
		}
	}
	m.o.Log.Info("manager is admitted", "manager", in.GetName(), "address", in.GetAddress(), "peer", in.GetPeer())
	e := m.auditEntry(ctx, "managers/"+in.GetName()+" admitted")
	e.Who, e.Role = in.GetName(), pki.RoleManager // it has no certificate yet
	m.audited(e)
	m.managerEvent(in.GetName(), reasonMemberJoined, "joined with a token from %s", host(e.GetFrom()))
	return connect.NewResponse(out), nil
}

// useManagerToken uses a join token to admit the key of a request, and excludes the key from an
// earlier revocation of the manager's name.
func (m *Manager) useManagerToken(ctx context.Context, in *apiv1.AdmitRequest) error {
	key, err := pki.RequestKeyHash(in.GetCsr())
	if err != nil {
		return fault(invalid{[]lb.Violation{{Field: "csr", Allowed: err.Error()}}})
	}
	t, err := m.lead(ctx)
	if err != nil {
		return connect.NewError(connect.CodeUnavailable, err)
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	if err := m.view.caQuiet("join a manager"); err != nil {
		return err // a CA replacement began after Admit's check
	}
	ops, err := m.view.admitKey(in.GetName(), key)
	if err != nil {
		return err
	}
	return t.use(ctx, in.GetToken(), in.GetName(), pki.RoleManager, key, ops...)
}

func admitFaults(in *apiv1.AdmitRequest, outside bool) []lb.Violation {
	var faults []lb.Violation
	if !nodeName.MatchString(in.GetName()) {
		faults = append(faults, lb.Violation{Field: "name", Value: in.GetName(), Allowed: allowedNodeName})
	}
	addrs := []struct{ field, value string }{{"address", in.GetAddress()}}
	if !outside {
		addrs = append(addrs, struct{ field, value string }{"peer", in.GetPeer()})
	}
	for _, a := range addrs {
		if host, port, err := net.SplitHostPort(a.value); err != nil || host == "" || port == "" {
			faults = append(faults, lb.Violation{Field: a.field, Value: a.value, Allowed: "must be ADDRESS:PORT"})
		}
	}
	return faults
}
