package manager

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
	"github.com/shuntlb/shunt/internal/plan"
)

// maxHealthOf is the number of endpoints in a response. With 8 checks of 20 results each a node's
// part has 600 KB.
const maxHealthOf = 64

// backendQuery names a backend, in all services or in one.
type backendQuery struct {
	dip     netip.Addr
	port    uint16 // 0: any
	service string
	// tenant, if not empty, selects its services only.
	tenant string
}

// seat is a backend as a member of an endpoint.
type seat struct {
	service string
	key     lb.EndpointKey
	backend lb.BackendKey
	member  uint16
	// hosts are the nodes that may check it on its own machine.
	hosts []string
}

// backendQueryOf converts a request.
func backendQueryOf(req *apiv1.HealthOfRequest, id identity) (q backendQuery, faults []lb.Violation) {
	q.dip, faults = convert.FromAddr("dip", req.GetDip())
	if req.GetPort() > 65535 {
		faults = append(faults, lb.Violation{Field: "port", Value: strconv.FormatUint(uint64(req.GetPort()), 10), Allowed: "must be 0 to 65535"})
	}
	q.port, q.service = uint16(req.GetPort()), req.GetService()
	if id.role == pki.RoleTenant {
		q.tenant = id.tenant
	}
	return q, faults
}

// none returns the error for a backend that does not exist. It is the same for one of another
// tenant.
func (q backendQuery) none() error {
	where := "no service has it"
	if q.service != "" {
		where = lb.Ref(lb.KindService, q.service) + " has no such backend"
	}
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("backend %s: %s", backendText(lb.BackendKey{DIP: q.dip, Port: q.port}), where))
}

// seats returns the endpoints that have a backend as a member, ordered by service and endpoint.
func (v *view) seats(q backendQuery) []seat {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var out []seat
	for key, st := range v.state.Endpoints {
		own := v.owners[key]
		if own.ep == nil || q.service != "" && own.svc.Name != q.service || q.tenant != "" && own.svc.Tenant != q.tenant {
			continue
		}
		for _, m := range st.Members {
			if m.Backend.DIP == q.dip && (q.port == 0 || m.Backend.Port == q.port) {
				out = append(out, seat{own.svc.Name, key, m.Backend, m.ID, v.checkersLocked(own.ep, key, m.Backend)})
			}
		}
	}
	slices.SortFunc(out, func(a, b seat) int {
		return cmp.Or(cmp.Compare(a.service, b.service), plan.CompareKeys(a.key, b.key), cmp.Compare(a.member, b.member))
	})
	return out
}

// checkersLocked returns the nodes that check a backend on its own machine.
func (v *view) checkersLocked(ep *lb.Endpoint, key lb.EndpointKey, backend lb.BackendKey) []string {
	if !ep.Health.ByHost() {
		return nil
	}
	for i := range ep.Backends {
		b := &ep.Backends[i]
		if dip, ok := b.DIP(key.VIP); ok && dip == backend.DIP && b.Port == backend.Port {
			return slices.DeleteFunc(slices.Clone(v.wanted.NodesAt(b.Host)), func(name string) bool {
				n := v.state.Nodes[name]
				return n == nil || n.Role != lb.RoleHost
			})
		}
	}
	return nil
}

// HealthOf implements the API: it queries the nodes that check the backend over their streams.
func (a api) HealthOf(ctx context.Context, req *connect.Request[apiv1.HealthOfRequest]) (*connect.Response[apiv1.HealthOfResponse], error) {
	q, faults := backendQueryOf(req.Msg, identityOf(ctx))
	if len(faults) > 0 {
		return nil, fault(invalid{faults})
	}
	found := a.m.view.seats(q)
	if len(found) == 0 {
		return nil, q.none()
	}
	out := &apiv1.HealthOfResponse{}
	if len(found) > maxHealthOf {
		found, out.Truncated = found[:maxHealthOf], true
	}
	for _, p := range found {
		out.Backends = append(out.Backends, p.health())
	}
	type answers struct {
		role    lb.Role
		of      []int // indices of found
		members []*apiv1.NodeHealth
	}
	byNode := map[string]*answers{}
	var names []string
	note := func(name string, role lb.Role, at int) {
		if byNode[name] == nil {
			byNode[name] = &answers{role: role}
			names = append(names, name)
		}
		byNode[name].of = append(byNode[name].of, at)
	}
	for _, mux := range a.m.reports.muxes() {
		for i := range found {
			note(mux, lb.RoleMux, i)
		}
	}
	for i, p := range found {
		for _, host := range p.hosts {
			note(host, lb.RoleHost, i)
		}
	}
	for i, members := range askAll(names, func(name string) []*apiv1.NodeHealth { return a.m.askHealth(ctx, name, found, byNode[name].of) }) {
		byNode[names[i]].members = members
	}
	for _, name := range names {
		for i, h := range byNode[name].members {
			if proto.Size(h) == 0 {
				continue // it does not check this one
			}
			h.Node, h.Role = name, string(byNode[name].role)
			b := out.Backends[byNode[name].of[i]]
			b.Nodes = append(b.Nodes, h)
		}
	}
	if err := a.m.withHistory(found, out.Backends); err != nil {
		return nil, fault(err)
	}
	return connect.NewResponse(out), nil
}

// health returns the data about a backend that needs no query.
func (p *seat) health() *apiv1.BackendHealth {
	return &apiv1.BackendHealth{
		Service: p.service, Vip: p.key.VIP.String(), Protocol: p.key.Protocol.String(), Port: uint32(p.key.Port), PortEnd: uint32(p.key.PortEnd),
		Dip: p.backend.DIP.String(), DipPort: uint32(p.backend.Port), Member: uint32(p.member),
	}
}

// askHealth queries a node about some of the seats. It returns one result for each.
func (m *Manager) askHealth(ctx context.Context, node string, all []seat, of []int) []*apiv1.NodeHealth {
	q := &apiv1.HealthQuestion{}
	for _, i := range of {
		q.Members = append(q.Members, convert.ToEndpointMember(all[i].key, all[i].member))
	}
	report, err := m.ask(ctx, node, func(id uint64) *apiv1.PlanUpdate {
		q.Id = id
		return &apiv1.PlanUpdate{HealthOf: q}
	})
	members := report.GetHealthReply().GetResult().GetMembers()
	if err == nil && len(members) != len(of) {
		err = errNoAnswer
	}
	if err != nil {
		members = make([]*apiv1.NodeHealth, len(of))
		for i := range members {
			members[i] = &apiv1.NodeHealth{Error: err.Error()}
		}
	}
	return members
}
