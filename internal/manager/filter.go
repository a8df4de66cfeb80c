package manager

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/lb"
)

// scope limits one call of a tenant.
type scope struct {
	identity
	view *view
	// told holds the objects that a Watch has sent.
	told map[ref]bool
}

func (d *door) scope(id identity) *scope {
	return &scope{identity: id, view: d.view, told: map[ref]bool{}}
}

// filter is the rule of one procedure for tenants. A nil asks checks nothing; a nil gets permits
// everything.
type filter struct {
	// asks returns an error for requests that are refused before any work.
	asks func(*scope, proto.Message) error
	// gets removes from a response the information that the tenant may not have. Messages below the
	// response itself are shared: they are replaced, never changed. It returns false if the rest is
	// not worth a response in a stream.
	gets func(s *scope, req, res proto.Message) (bool, error)
	// names returns the one object that a request is for, if the response about another tenant's
	// object is empty.
	names func(proto.Message) ref
}

// filters has all procedures that tenants may call. Tenants are refused any other.
var filters = map[string]filter{
	shuntv1connect.ManagerApplyProcedure:   {},
	shuntv1connect.ManagerDeleteProcedure:  {},
	shuntv1connect.ManagerVersionProcedure: {},
	// These check the caller themselves.
	shuntv1connect.ManagerRotateKeysProcedure: {},
	shuntv1connect.ManagerListKeysProcedure:   {},
	shuntv1connect.ManagerQUICConfigProcedure: {},
	shuntv1connect.ManagerGetProcedure: {asks: func(_ *scope, req proto.Message) error {
		return readable(req.(*apiv1.GetRequest).GetKind())
	}, gets: func(s *scope, req, res proto.Message) (bool, error) {
		return s.objects(req.(*apiv1.GetRequest), res.(*apiv1.GetResponse))
	}},
	shuntv1connect.ManagerWatchProcedure: {asks: func(_ *scope, req proto.Message) error {
		return readable(req.(*apiv1.WatchRequest).GetKind())
	}, gets: func(s *scope, _, res proto.Message) (bool, error) {
		return s.changes(res.(*apiv1.WatchResponse)), nil
	}, names: func(req proto.Message) ref {
		r := req.(*apiv1.WatchRequest)
		return ref{lb.Kind(r.GetKind()), r.GetName()}
	}},
	shuntv1connect.ManagerStatusProcedure: {gets: func(s *scope, req, res proto.Message) (bool, error) {
		return s.status(req.(*apiv1.StatusRequest), res.(*apiv1.StatusResponse))
	}, names: func(req proto.Message) ref {
		return ref{lb.KindService, req.(*apiv1.StatusRequest).GetService()}
	}},
	shuntv1connect.ManagerEventsProcedure: {asks: func(_ *scope, req proto.Message) error {
		return readable(req.(*apiv1.EventsRequest).GetKind())
	}, gets: func(s *scope, _, res proto.Message) (bool, error) {
		return s.events(res.(*apiv1.EventsResponse)), nil
	}, names: func(req proto.Message) ref {
		r := req.(*apiv1.EventsRequest)
		return ref{lb.Kind(r.GetKind()), r.GetName()}
	}},
	shuntv1connect.ManagerTraceProcedure: {
		asks: func(s *scope, req proto.Message) error { return s.vip(req.(*apiv1.TraceRequest).GetVip()) },
		gets: func(s *scope, _, res proto.Message) (bool, error) { return s.traces(res.(*apiv1.TraceResponse)), nil },
	},
	shuntv1connect.ManagerFlowsProcedure: {
		asks: func(s *scope, req proto.Message) error { return s.vip(req.(*apiv1.FlowsRequest).GetVip()) },
		gets: func(s *scope, _, res proto.Message) (bool, error) { return s.flows(res.(*apiv1.FlowsResponse)), nil },
	},
	shuntv1connect.ManagerHealthOfProcedure: {
		asks: func(s *scope, req proto.Message) error { return s.backend(req.(*apiv1.HealthOfRequest)) },
		gets: func(s *scope, _, res proto.Message) (bool, error) {
			return s.health(res.(*apiv1.HealthOfResponse)), nil
		},
	},
}

// readable refuses kinds of which tenants see no object, because an empty list would suggest that
// there are none.
func readable(kind string) error {
	switch kind := lb.Kind(kind); kind {
	case lb.KindNode, lb.KindNetwork:
		return denied("role tenant may not read %s", kind.Plural())
	case kindManager:
		return denied("role tenant may not read events of managers")
	}
	return nil
}

// objects removes the objects that the tenant may not see.
func (s *scope) objects(req *apiv1.GetRequest, res *apiv1.GetResponse) (bool, error) {
	res.Objects = only(res.GetObjects(), s.sees)
	if req.GetName() != "" && len(res.Objects) == 0 {
		return false, s.missing(ref{lb.Kind(req.GetKind()), req.GetName()})
	}
	return true, nil
}

// changes turns an object that passes to another tenant into a deletion, and one that comes from
// another into a new object. The first response may be empty; later ones without a change are left
// out.
func (s *scope) changes(res *apiv1.WatchResponse) bool {
	first := len(s.told) == 0 && !s.told[ref{}]
	s.told[ref{}] = true
	var upserted []*apiv1.Object
	var deleted []*apiv1.ObjectRef
	for _, o := range res.GetUpserted() {
		r := refOfObject(o)
		switch {
		case s.sees(o):
			s.told[r] = true
			upserted = append(upserted, o)
		case s.told[r]:
			deleted = append(deleted, &apiv1.ObjectRef{Kind: string(r.kind), Name: r.name})
			delete(s.told, r)
		}
	}
	for _, o := range res.GetDeleted() {
		r := ref{lb.Kind(o.GetKind()), o.GetName()}
		if s.told[r] {
			deleted = append(deleted, o)
			delete(s.told, r)
		}
	}
	res.Upserted, res.Deleted = upserted, deleted
	return first || len(upserted)+len(deleted) > 0
}

func refOfObject(o *apiv1.Object) ref {
	switch k := o.GetKind().(type) {
	case *apiv1.Object_Service:
		return ref{lb.KindService, k.Service.GetName()}
	case *apiv1.Object_Node:
		return ref{lb.KindNode, k.Node.GetName()}
	case *apiv1.Object_Network:
		return ref{lb.KindNetwork, k.Network.GetName()}
	case *apiv1.Object_Tenant:
		return ref{lb.KindTenant, k.Tenant.GetName()}
	case *apiv1.Object_Policy:
		return ref{lb.KindPolicy, k.Policy.GetName()}
	}
	return ref{}
}

// status filters the response that Status built for the tenant once more, and removes the fields
// meant for other roles.
func (s *scope) status(req *apiv1.StatusRequest, res *apiv1.StatusResponse) (bool, error) {
	own := owned(s.services())
	res.Nodes = own.nodes(res.GetNodes())
	res.Decisions = only(res.GetDecisions(), func(d *apiv1.MemberDecision) bool { return own[d.GetService()] })
	res.Placements = only(res.GetPlacements(), func(p *apiv1.VIPPlacement) bool { return own[p.GetService()] })
	res.Snat = only(res.GetSnat(), func(p *apiv1.SnatStatus) bool { return own[p.GetService()] })
	res.SnatVips = only(res.GetSnatVips(), func(p *apiv1.SnatVIPStatus) bool { return own[p.GetService()] })
	res.Load = only(res.GetLoad(), func(p *apiv1.LoadStatus) bool { return own[p.GetService()] })
	res.Leader, res.SnatCounts = "", nil
	if !own[req.GetService()] {
		res.Warnings = nil
	}
	if req.GetNode() != "" && len(res.Nodes) == 0 {
		return false, s.missing(ref{lb.KindNode, req.GetNode()})
	}
	return true, nil
}

// events removes the events of others. An empty response reports that the stream has begun.
func (s *scope) events(res *apiv1.EventsResponse) bool {
	begins := len(res.GetEvents()) == 0
	res.Events = only(res.GetEvents(), func(e *apiv1.Event) bool {
		kind := lb.Kind(e.GetKind())
		return e.GetTenant() == s.tenant && kind != lb.KindNode && kind != lb.KindNetwork
	})
	return begins || len(res.Events) > 0
}

// vip refuses requests about VIPs that the tenant does not have, whether another tenant has them or
// not.
func (s *scope) vip(text string) error {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return nil // the call itself reports the error
	}
	s.view.mu.RLock()
	defer s.view.mu.RUnlock()
	taken := false
	for _, svc := range s.view.state.Services {
		switch {
		case !slices.Contains(svc.VIPs, addr):
		case svc.Tenant == s.tenant:
			return nil
		default:
			taken = true
		}
	}
	none := connect.NewError(connect.CodeNotFound, fmt.Errorf("vip: %s: no service of tenant %s has it", addr, s.tenant))
	if taken {
		return overReach{none, "it is another tenant's"}
	}
	return none
}

var errMoved = errors.New("the VIP has passed to another tenant meanwhile")

func (s *scope) traces(res *apiv1.TraceResponse) bool {
	own := s.services()
	for i, r := range res.GetResults() {
		if r.GetService() != "" && !own[r.GetService()] {
			res.Results[i] = &apiv1.TraceResult{Node: r.GetNode(), Error: errMoved.Error()}
		}
	}
	return true
}

func (s *scope) flows(res *apiv1.FlowsResponse) bool {
	own := s.services()
	for i, r := range res.GetResults() {
		res.Results[i] = &apiv1.FlowsResult{
			Node: r.GetNode(), Truncated: r.GetTruncated(), Error: r.GetError(),
			Flows: only(r.GetFlows(), func(f *apiv1.FlowStatus) bool { return own[f.GetService()] }),
		}
	}
	return true
}

// backend refuses requests about backends that no service of the tenant has, whether another tenant
// has them or not.
func (s *scope) backend(req *apiv1.HealthOfRequest) error {
	q, faults := backendQueryOf(req, s.identity)
	if len(faults) > 0 || len(s.view.seats(q)) > 0 {
		return nil // the call itself reports the error
	}
	none := q.none()
	if q.tenant = ""; len(s.view.seats(q)) > 0 {
		return overReach{none, "it is another tenant's"}
	}
	return none
}

func (s *scope) health(res *apiv1.HealthOfResponse) bool {
	own := s.services()
	res.Backends = only(res.GetBackends(), func(b *apiv1.BackendHealth) bool { return own[b.GetService()] })
	return true
}

// services returns the names of the tenant's services.
func (s *scope) services() map[string]bool {
	s.view.mu.RLock()
	defer s.view.mu.RUnlock()
	own := map[string]bool{}
	for name, svc := range s.view.state.Services {
		if svc.Tenant == s.tenant {
			own[name] = true
		}
	}
	return own
}

// only returns a copy of the elements that fit.
func only[T any](all []T, fits func(T) bool) []T {
	var out []T
	for _, v := range all {
		if fits(v) {
			out = append(out, v)
		}
	}
	return out
}
