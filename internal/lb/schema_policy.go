package lb

import (
	"net/netip"

	"github.com/goccy/go-yaml/ast"
)

// The YAML schema of policies and tenants.

func (d *decoder) policy(n ast.Node) *Policy {
	o := &Policy{}
	d.mapping("", n,
		field{"kind", d.ignore},
		field{"name", func(p string, n ast.Node) { o.Name = d.text(p, n) }},
		field{"tenant", func(p string, n ast.Node) { o.Tenant = d.given(p, n, "must be the name of a tenant") }},
		field{"limits", func(p string, n ast.Node) { o.Limits = d.limits(p, n) }},
		field{"sources", func(p string, n ast.Node) { o.Sources = d.sources(p, n) }},
		field{"placement", func(p string, n ast.Node) { o.Placement = d.placement(p, n) }},
	)
	return o
}

func (d *decoder) tenant(n ast.Node) *Tenant {
	o := &Tenant{Weight: DefaultTenantWeight}
	d.mapping("", n,
		field{"kind", d.ignore},
		field{"name", func(p string, n ast.Node) { o.Name = d.text(p, n) }},
		field{"weight", func(p string, n ast.Node) { o.Weight = uint32(d.number(p, n, 32, allowedTenantWeight)) }},
		field{"vni", func(p string, n ast.Node) { o.VNI = uint32(d.number(p, n, 32, allowedVNI)) }},
		field{"quotas", func(p string, n ast.Node) { d.quotas(p, n, &o.Quotas) }},
		field{"dips", d.prefixes(&o.DIPs)},
		field{"hosts", d.prefixes(&o.Hosts)},
		field{"vips", d.prefixes(&o.VIPs)},
		field{"shared", func(p string, n ast.Node) {
			d.list(p, n, func(p string, n ast.Node) { o.Shared = append(o.Shared, d.share(p, n)) })
		}},
	)
	return o
}

func (d *decoder) share(path string, n ast.Node) (out Share) {
	d.mapping(path, n,
		field{"tenants", func(p string, n ast.Node) {
			d.listOrOne(p, n, func(p string, n ast.Node) { out.Tenants = append(out.Tenants, d.text(p, n)) })
		}},
		field{"dips", d.prefixes(&out.DIPs)},
		field{"vips", d.prefixes(&out.VIPs)},
	)
	return out
}

func (d *decoder) quotas(path string, n ast.Node, q *Quotas) {
	quota := func(to *uint32) func(string, ast.Node) {
		return func(p string, n ast.Node) { *to = uint32(d.number(p, n, 32, allowedQuota)) }
	}
	bounded := func(to *uint32) func(string, ast.Node) {
		return func(p string, n ast.Node) {
			if s, ok := n.(*ast.StringNode); ok && s.Value == "unlimited" {
				*to = Unlimited
				return
			}
			*to = uint32(d.number(p, n, 32, allowedDefaultedQuota))
		}
	}
	d.mapping(path, n,
		field{"services", bounded(&q.Services)},
		field{"endpoints", bounded(&q.Endpoints)},
		field{"backends", bounded(&q.Backends)},
		field{"changes", bounded(&q.Changes)},
		field{"snatPorts", quota(&q.SNATPorts)},
		field{"snatPortsPerDip", quota(&q.SNATPortsPerDIP)},
		field{"probes", quota(&q.Probes)},
	)
}

func (d *decoder) capacity(path string, n ast.Node, c *Capacity) {
	d.mapping(path, n,
		field{"vips", func(p string, n ast.Node) { c.VIPs = uint32(d.number(p, n, 32, allowedQuota)) }},
		field{"packets", func(p string, n ast.Node) { c.Packets = d.number(p, n, 64, allowedRate) }},
	)
}

func (d *decoder) limits(path string, n ast.Node) *Limits {
	l := &Limits{Ping: DefaultPing}
	d.mapping(path, n,
		field{"packets", func(p string, n ast.Node) { l.Packets = d.number(p, n, 64, allowedRate) }},
		field{"connections", func(p string, n ast.Node) { l.Connections = d.number(p, n, 64, allowedRate) }},
		field{"ping", func(p string, n ast.Node) { l.Ping = d.number(p, n, 64, allowedPing) }},
	)
	return l
}

func (d *decoder) sources(path string, n ast.Node) *Sources {
	s := &Sources{}
	d.mapping(path, n,
		field{"allow", d.prefixes(&s.Allow)},
		field{"deny", d.prefixes(&s.Deny)},
	)
	return s
}

func (d *decoder) placement(path string, n ast.Node) *Placement {
	o := &Placement{By: PlaceByVIPs}
	d.mapping(path, n,
		field{"replicas", func(p string, n ast.Node) { o.Replicas = uint32(d.number(p, n, 32, allowedReplicas)) }},
		field{"by", func(p string, n ast.Node) { o.By = d.text(p, n) }},
	)
	return o
}

// prefixes reads a list of prefixes, or one without brackets, and replaces the previous value.
func (d *decoder) prefixes(to *[]netip.Prefix) func(string, ast.Node) {
	return func(p string, n ast.Node) {
		*to = nil
		d.listOrOne(p, n, func(p string, n ast.Node) { *to = append(*to, d.prefix(p, n)) })
	}
}
