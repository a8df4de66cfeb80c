package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// related holds objects that tables and descriptions of other objects refer to.
type related struct {
	services []*lb.Service
	policies map[string]*lb.Policy
}

// related reads the objects that a kind refers to: for tenants and policies the services that name
// them, for services the policies that they name.
func (c *client) related(ctx context.Context, kind lb.Kind, objects []*apiv1.Object) (related, error) {
	var r related
	switch kind {
	case lb.KindTenant, lb.KindPolicy:
		services, err := c.fetch(ctx, lb.KindService, "")
		if err != nil {
			return r, err
		}
		for _, o := range services {
			object, err := domainObject(o)
			if err != nil {
				return r, err
			}
			r.services = append(r.services, object.(*lb.Service))
		}
	case lb.KindService:
		r.policies = map[string]*lb.Policy{}
		for _, o := range objects {
			name := o.GetService().GetPolicy()
			if name == "" || r.policies[name] != nil {
				continue
			}
			policies, err := c.fetch(ctx, lb.KindPolicy, name)
			if err != nil {
				return r, err
			}
			object, err := domainObject(policies[0])
			if err != nil {
				return r, err
			}
			r.policies[name] = object.(*lb.Policy)
		}
	}
	return r, nil
}

// usage returns a tenant's usage.
func (r related) usage(tenant string) lb.Usage {
	var u lb.Usage
	for _, s := range r.services {
		if s.Tenant == tenant {
			u.Add(s.Usage())
		}
	}
	return u
}

// of returns the names of the services that fit.
func (r related) of(fits func(*lb.Service) bool) []string {
	var names []string
	for _, s := range r.services {
		if fits(s) {
			names = append(names, s.Name)
		}
	}
	return names
}

// ofQuota returns a count and its quota: "3/10", or "3" without a quota.
func ofQuota(used int, quota uint32) string {
	if quota == 0 {
		return fmt.Sprint(used)
	}
	return fmt.Sprintf("%d/%d", used, quota)
}

// mostText returns a quota as text: the default where it is 0.
func mostText(quota, byDefault uint32) string {
	switch quota {
	case 0:
		return fmt.Sprintf("%d (default for role tenant)", byDefault)
	case lb.Unlimited:
		return "any number"
	}
	return fmt.Sprint(quota)
}

// tenantRow returns a tenant's row.
func tenantRow(t *lb.Tenant, r related) []string {
	u, changes := r.usage(t.Name), ""
	if t.Quotas.Changes > 0 {
		changes = fmt.Sprint(t.Quotas.Changes)
	}
	return []string{
		t.Name, fmt.Sprint(t.Weight), ofQuota(u.Services, t.Quotas.Services), ofQuota(u.Endpoints, t.Quotas.Endpoints),
		ofQuota(u.Backends, t.Quotas.Backends), changes,
	}
}

// policyRow returns a policy's row.
func policyRow(p *lb.Policy, r related) []string {
	row := []string{p.Name, p.Tenant, "", "", "", fmt.Sprint(len(r.of(func(s *lb.Service) bool { return s.Policy == p.Name })))}
	if p.Limits != nil {
		row[2] = fmt.Sprintf("%d,%d,%d", p.Limits.Packets, p.Limits.Connections, p.Limits.Ping)
	}
	if p.Sources != nil {
		row[3] = fmt.Sprintf("%d,%d", len(p.Sources.Allow), len(p.Sources.Deny))
	}
	if p.Placement != nil {
		row[4] = placementText(*p.Placement)
	}
	return row
}

// placementText returns a placement as text.
func placementText(p lb.Placement) string {
	if p.Replicas == 0 {
		return "every mux"
	}
	return fmt.Sprintf("%d by %s", p.Replicas, p.By)
}

// sourcesText describes the clients that are served.
func sourcesText(s *lb.Sources) string {
	allow, deny := len(s.Allow), len(s.Deny)
	if allow+deny == 0 {
		return "all"
	}
	return fmt.Sprintf("%d prefixes allowed, %d denied; others %s", allow, deny, map[bool]string{true: "pass", false: "are refused"}[allow == 0])
}

func (d *description) tenant(t *lb.Tenant) {
	u := d.related.usage(t.Name)
	d.field("Tenant", t.Name)
	d.field("Weight", fmt.Sprint(t.Weight))
	quota := func(name string, used int, quota, byDefault uint32) {
		d.field(name, fmt.Sprintf("%d of %s", used, mostText(quota, byDefault)))
	}
	quota("Services", u.Services, t.Quotas.Services, lb.DefaultQuotas.Services)
	quota("Endpoints", u.Endpoints, t.Quotas.Endpoints, lb.DefaultQuotas.Endpoints)
	quota("Backends", u.Backends, t.Quotas.Backends, lb.DefaultQuotas.Backends)
	d.field("Changes", "at most "+mostText(t.Quotas.Changes, lb.DefaultQuotas.Changes)+" a minute")
	for _, list := range []struct {
		name     string
		prefixes []netip.Prefix
	}{{"DIPs", t.DIPs}, {"Hosts", t.Hosts}, {"VIPs", t.VIPs}} {
		if len(list.prefixes) > 0 {
			d.field(list.name, joined(list.prefixes))
		}
	}
	for _, s := range t.Shared {
		d.field("Shared", joined(slices.Concat(s.DIPs, s.VIPs))+" with "+strings.Join(s.Tenants, ", "))
	}
	d.stamp()
	d.field("Owns", strings.Join(d.related.of(func(s *lb.Service) bool { return s.Tenant == t.Name }), ", "))
}

func (d *description) policy(p *lb.Policy) {
	d.field("Policy", p.Name)
	if p.Tenant == "" {
		d.field("Tenant", "every tenant's services may name it")
	} else {
		d.field("Tenant", p.Tenant)
	}
	if p.Limits != nil {
		d.field("Limits", limitsText(*p.Limits))
	}
	if p.Sources != nil {
		d.field("Sources", sourcesText(p.Sources))
	}
	if p.Placement != nil {
		d.field("Placement", placementText(*p.Placement))
	}
	d.stamp()
	d.field("Named by", strings.Join(d.related.of(func(s *lb.Service) bool { return s.Policy == p.Name }), ", "))
}

// shared writes the effective limits, sources and placement of a service, and the policy that they
// come from.
func (d *description) shared(s *lb.Service) {
	e := lb.Effective(s, d.related.policies)
	p := d.related.policies[s.Policy]
	write := func(name, text string, own, shared bool) {
		if !own && shared {
			text += " (" + lb.Ref(lb.KindPolicy, s.Policy) + ")"
		}
		d.field(name, text)
	}
	if s.Policy != "" {
		d.field("Policy", s.Policy)
	}
	write("Limits", limitsText(e.Limits), s.Limits != nil, p != nil && p.Limits != nil)
	if s.Sources != nil || p != nil && p.Sources != nil {
		write("Sources", sourcesText(e.Sources), s.Sources != nil, true)
	}
	if s.Placement != nil || p != nil && p.Placement != nil {
		write("Placement", placementText(e.Placement), s.Placement != nil, true)
	}
}

// joined lists prefixes on one line.
func joined(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}
