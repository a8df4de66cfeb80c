package manager

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
)

// QUICConfig implements the API. The audit log records who got keys.
func (a api) QUICConfig(ctx context.Context, req *connect.Request[apiv1.QUICConfigRequest]) (*connect.Response[apiv1.QUICConfigResponse], error) {
	name := req.Msg.GetService()
	if name == "" {
		return nil, fault(invalid{[]lb.Violation{{Field: "service", Allowed: "is missing, must be the name of a service"}}})
	}
	var backend netip.Addr
	if s := req.Msg.GetBackend(); s != "" {
		var allowed string
		if backend, allowed = lb.ParseAddr(s); allowed != "" {
			return nil, fault(invalid{[]lb.Violation{{Field: "backend", Value: s, Allowed: allowed}}})
		}
	}
	servers, err := a.m.view.quicServers(name, backend, identityOf(ctx))
	if err != nil {
		return nil, fault(err)
	}
	a.m.audited(a.m.auditEntry(ctx, fmt.Sprintf("connection ids of %s: %d servers", lb.Ref(lb.KindService, name), len(servers))))
	return connect.NewResponse(&apiv1.QUICConfigResponse{Servers: servers}), nil
}

// quicServers returns the servers of a service's quic endpoints, or only those with the backend
// address.
func (v *view) quicServers(name string, backend netip.Addr, by identity) (out []*apiv1.QUICServer, err error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	r := ref{lb.KindService, name}
	svc := v.state.Services[name]
	if svc == nil || by.role == pki.RoleTenant && svc.Tenant != by.tenant {
		if svc != nil {
			return nil, overReach{notFound{r}, "it is another tenant's"}
		}
		return nil, notFound{r}
	}
	set, mod := v.keySetLocked(cidsOf(name))
	endpoints := 0
	plan.EachEndpoint(svc, func(key lb.EndpointKey, ep *lb.Endpoint) {
		if ep.QUIC == nil || !ep.Cookies() || ep.QUIC.Keyed() && mod == 0 {
			return
		}
		endpoints++
		st := v.state.Endpoints[key]
		for _, m := range st.Members {
			if backend.IsValid() && m.Backend.DIP != backend {
				continue
			}
			out = append(out, &apiv1.QUICServer{
				Vip: key.VIP.String(), Port: lb.PortsText(key.Port, key.PortEnd), Dip: m.Backend.DIP.String(), DipPort: uint32(m.Backend.Port),
				CidLength: uint32(ep.QUIC.CIDLength()), Configs: quicConfigs(ep.QUIC, m.ID, &set),
			})
		}
	})
	switch {
	case endpoints == 0:
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("%s: has no quic endpoint with affinity cookie", lb.Ref(lb.KindService, name)))
	case len(out) == 0 && backend.IsValid():
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("%s: backend: %s: no quic endpoint with affinity cookie has it", lb.Ref(lb.KindService, name), backend))
	}
	slices.SortStableFunc(out, func(a, b *apiv1.QUICServer) int {
		return cmp.Or(strings.Compare(a.GetVip(), b.GetVip()), strings.Compare(a.GetPort(), b.GetPort()), strings.Compare(a.GetDip(), b.GetDip()), cmp.Compare(a.GetDipPort(), b.GetDipPort()))
	})
	return out, nil
}

// quicConfigs returns the configurations of a member, oldest first. Formats without keys have one,
// of id 0.
func quicConfigs(q *lb.QUIC, member uint16, set *plan.KeySet) (out []*apiv1.QUICServerConfig) {
	one := func() *apiv1.QUICServerConfig {
		return &apiv1.QUICServerConfig{Format: q.Format, ServerId: q.ServerID(member), NonceLength: uint32(q.NonceLength), Active: true}
	}
	if !q.Keyed() {
		return append(out, one())
	}
	for _, k := range set.Keys {
		c, key := one(), plan.CIDKey{Epoch: k.Epoch, Key: k.Key}
		c.Id, c.Key, c.Active = uint32(key.ConfigID()), key.Key[:], k.Epoch == set.Mint()
		out = append(out, c)
	}
	return out
}
