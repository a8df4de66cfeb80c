package convert

import (
	"fmt"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// limits returns nil for an absent message, which means not set: an empty message is set.

func limits(in *apiv1.Limits) *lb.Limits {
	if in == nil {
		return nil
	}
	return &lb.Limits{Packets: in.GetPackets(), Connections: in.GetConnections(), Ping: in.GetPing()}
}

func toLimits(l *lb.Limits) *apiv1.Limits {
	if l == nil {
		return nil
	}
	return &apiv1.Limits{Packets: l.Packets, Connections: l.Connections, Ping: l.Ping}
}

func (r *reader) sources(in *apiv1.Sources) *lb.Sources {
	if in == nil {
		return nil
	}
	return &lb.Sources{Allow: r.prefixes("sources.allow", in.GetAllow()), Deny: r.prefixes("sources.deny", in.GetDeny())}
}

func toSources(s *lb.Sources) *apiv1.Sources {
	if s == nil {
		return nil
	}
	return &apiv1.Sources{Allow: texts(s.Allow), Deny: texts(s.Deny)}
}

func placement(in *apiv1.Placement) *lb.Placement {
	if in == nil {
		return nil
	}
	return &lb.Placement{Replicas: in.GetReplicas(), By: in.GetBy()}
}

func toPlacement(p *lb.Placement) *apiv1.Placement {
	if p == nil {
		return nil
	}
	return &apiv1.Placement{Replicas: p.Replicas, By: p.By}
}

func (r *reader) policy(in *apiv1.Policy) *lb.Policy {
	return &lb.Policy{
		Name: in.GetName(), Tenant: in.GetTenant(), Limits: limits(in.GetLimits()), Sources: r.sources(in.GetSources()),
		Placement: placement(in.GetPlacement()),
	}
}

// ToPolicy writes a policy.
func ToPolicy(p *lb.Policy) *apiv1.Policy {
	return &apiv1.Policy{
		Name: p.Name, Tenant: p.Tenant, Limits: toLimits(p.Limits), Sources: toSources(p.Sources), Placement: toPlacement(p.Placement),
	}
}

func (r *reader) tenant(in *apiv1.Tenant) *lb.Tenant {
	q := in.GetQuotas()
	out := &lb.Tenant{
		Name: in.GetName(), Weight: in.GetWeight(), VNI: in.GetVni(),
		Quotas: lb.Quotas{
			Services: q.GetServices(), Endpoints: q.GetEndpoints(), Backends: q.GetBackends(), Changes: q.GetChanges(),
			SNATPorts: q.GetSnatPorts(), SNATPortsPerDIP: q.GetSnatPortsPerDip(), Probes: q.GetProbes(),
		},
		DIPs: r.prefixes("dips", in.GetDips()), Hosts: r.prefixes("hosts", in.GetHosts()), VIPs: r.prefixes("vips", in.GetVips()),
	}
	for i, s := range in.GetShared() {
		at := fmt.Sprintf("shared[%d]", i)
		out.Shared = append(out.Shared, lb.Share{
			Tenants: s.GetTenants(), DIPs: r.prefixes(at+".dips", s.GetDips()), VIPs: r.prefixes(at+".vips", s.GetVips()),
		})
	}
	return out
}

// ToTenant writes a tenant.
func ToTenant(t *lb.Tenant) *apiv1.Tenant {
	out := &apiv1.Tenant{Name: t.Name, Weight: t.Weight, Vni: t.VNI}
	if q := t.Quotas; q != (lb.Quotas{}) {
		out.Quotas = &apiv1.Quotas{Services: q.Services, Endpoints: q.Endpoints, Backends: q.Backends, Changes: q.Changes, SnatPorts: q.SNATPorts, SnatPortsPerDip: q.SNATPortsPerDIP, Probes: q.Probes}
	}
	out.Dips, out.Hosts, out.Vips = texts(t.DIPs), texts(t.Hosts), texts(t.VIPs)
	for _, s := range t.Shared {
		out.Shared = append(out.Shared, &apiv1.Share{Tenants: s.Tenants, Dips: texts(s.DIPs), Vips: texts(s.VIPs)})
	}
	return out
}
