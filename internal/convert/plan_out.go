package convert

import (
	"net/netip"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// ToItems writes a plan as items with distinct keys. A plan without a node has none.
func ToItems(p *plan.Plan) []*apiv1.PlanItem {
	var out []*apiv1.PlanItem
	if p.Node.Name != "" {
		out = append(out, NodeItem(p))
	}
	for _, k := range p.RingKeys {
		out = append(out, KeyItem(k))
	}
	for i := range p.Services {
		out = append(out, ServiceItem(&p.Services[i]))
	}
	for i := range p.Sources {
		out = append(out, SourcesItem(&p.Sources[i]))
	}
	for i := range p.Endpoints {
		out = append(out, EndpointItem(&p.Endpoints[i]))
	}
	for i := range p.Bindings {
		out = append(out, BindingItem(&p.Bindings[i]))
	}
	for i := range p.Repairs {
		out = append(out, RepairItem(&p.Repairs[i]))
	}
	for i := range p.Cookies {
		out = append(out, CookiesItem(&p.Cookies[i]))
	}
	for i := range p.CIDs {
		out = append(out, CIDsItem(&p.CIDs[i]))
	}
	return out
}

// NodeItem writes the node's own part of a plan.
func NodeItem(p *plan.Plan) *apiv1.PlanItem {
	return &apiv1.PlanItem{Key: plan.NodeItem, Item: &apiv1.PlanItem_Node{Node: &apiv1.PlanNode{
		Node: ToNode(&p.Node), Mtu: p.MTU, TunnelSources: texts(p.TunnelSources), Vips: texts(p.VIPs), Underlay: texts(p.Underlay),
		Inside: texts(p.Inside), Switches: texts(p.Switches),
	}}}
}

// KeyItem writes a ring hash key.
func KeyItem(k plan.Key) *apiv1.PlanItem {
	return &apiv1.PlanItem{Key: plan.KeyItem(k.ID), Item: &apiv1.PlanItem_RingKey{RingKey: &apiv1.PlanKey{Id: k.ID, Key: slices.Clone(k.Key[:])}}}
}

// EndpointItem writes an endpoint for muxes.
func EndpointItem(ep *plan.Endpoint) *apiv1.PlanItem {
	out := &apiv1.PlanEndpoint{
		Service: ep.Service, Vni: ep.Key.VNI, Vip: text(ep.Key.VIP), Protocol: ep.Key.Protocol.String(), Port: uint32(ep.Key.Port),
		PortEnd: uint32(ep.Key.PortEnd), Generation: ep.Generation, RingCode: uint32(ep.RingCode), KeyId: ep.KeyID, RingTweak: ep.RingTweak,
		Check: toPlanCheck(ep.Health), Affinity: ep.Affinity, Source: toSource(ep.Source), OnePacket: ep.OnePacket, Idle: toIdle(ep.Idle),
		Fragments: ep.Fragments, Encap: ep.Encap, BackupBelow: uint32(ep.BackupBelow), FailOpen: ep.FailOpen,
		Scheduler: ep.Scheduler, ScheduleBy: ep.ScheduleBy, Track: ep.Track, Quic: toQUIC(ep.QUIC), Cookie: ep.Cookie, Nat: ep.NAT, FlowsFirst: ep.FlowsFirst, KeepDead: ep.KeepDead,
	}
	for _, m := range ep.Members {
		out.Members = append(out.Members, &apiv1.PlanMember{
			Id: uint32(m.ID), Dip: text(m.DIP), Port: uint32(m.Port), Weight: uint32(m.Weight), Outer: text(m.Outer),
			Backup: m.Backup, Down: m.Down, Host: text(m.Host),
		})
	}
	return &apiv1.PlanItem{Key: plan.EndpointItem(ep.Key), Item: &apiv1.PlanItem_Endpoint{Endpoint: out}}
}

// toPlanCheck writes all fields only if versions that know one check of two kinds could not read
// it.
func toPlanCheck(h lb.Health) *apiv1.PlanCheck {
	if len(h.Checks) == 0 {
		return nil
	}
	c := h.Checks[0]
	out := &apiv1.PlanCheck{
		Kind: c.Kind, Path: c.Path, Host: c.Host, Interval: duration(c.Interval), Timeout: duration(c.Timeout),
		Rise: c.Rise, Fall: c.Fall, Port: uint32(c.Port), From: h.From,
	}
	if c.Through != lb.ThroughDirect {
		out.Through = c.Through
	}
	if r := (&reader{}); !h.Equal(r.planCheck(out)) {
		out.Health = toHealth(h)
	}
	return out
}

// ServiceItem writes the shared data of a service's endpoints.
func ServiceItem(s *plan.Service) *apiv1.PlanItem {
	return &apiv1.PlanItem{Key: plan.ServiceItem(s.Name), Item: &apiv1.PlanItem_Service{Service: &apiv1.PlanService{
		Name: s.Name, Vip: texts(s.VIPs), Limits: toLimits(&s.Limits), Allow: packPrefixes(s.Sources.Allow), Deny: packPrefixes(s.Sources.Deny),
		SourcesOf: s.SourcesOf, Outbound: s.Outbound, Tenant: s.Tenant, Created: s.Created,
	}}}
}

// SourcesItem writes the source list of a policy.
func SourcesItem(s *plan.Sources) *apiv1.PlanItem {
	return &apiv1.PlanItem{Key: plan.SourcesItem(s.Policy), Item: &apiv1.PlanItem_Sources{Sources: &apiv1.PlanSources{
		Policy: s.Policy, Allow: packPrefixes(s.Allow), Deny: packPrefixes(s.Deny),
	}}}
}

// prefixBytes is the size of a packed prefix: a 16-byte address, IPv4 mapped, and the length in its
// own family.
const prefixBytes = 17

func packPrefixes(list []netip.Prefix) []byte {
	out := make([]byte, 0, len(list)*prefixBytes)
	for _, p := range list {
		a := p.Addr().As16()
		out = append(append(out, a[:]...), byte(p.Bits()))
	}
	return out
}

// BindingItem writes a member of an endpoint for its host.
func BindingItem(b *plan.Binding) *apiv1.PlanItem {
	out := &apiv1.PlanBinding{
		Service: b.Service, Vni: b.Key.VNI, Vip: text(b.Key.VIP), Protocol: b.Key.Protocol.String(), Port: uint32(b.Key.Port),
		Member: uint32(b.Member), Outer: text(b.Outer), Dip: text(b.DIP), DipPort: uint32(b.DIPPort), Rewrite: b.Rewrite,
		PortEnd: uint32(b.Key.PortEnd), Encap: b.Encap, HostIdle: toHostIdle(b.Idle), Share: uint32(b.Share), Load: toLoad(b.Load),
		Cookie: b.Cookie, Quic: toQUIC(b.QUIC), Tenant: b.Tenant, Created: b.Created,
	}
	if b.Health.ByHost() {
		out.Check = toPlanCheck(b.Health)
	}
	return &apiv1.PlanItem{Key: plan.BindingItem(b.Key, b.Outer, b.Member), Item: &apiv1.PlanItem_Binding{Binding: out}}
}
