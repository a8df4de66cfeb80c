package lb

import (
	"fmt"
	"net/netip"
	"strings"
)

func (w *writer) tenant(t *Tenant) {
	w.line("weight: %d", t.Weight)
	if t.VNI != 0 {
		w.line("vni: %d", t.VNI)
	}
	if q := t.Quotas; q != (Quotas{}) {
		w.line("quotas: %s", numbers{
			{"services", uint64(q.Services)}, {"endpoints", uint64(q.Endpoints)}, {"backends", uint64(q.Backends)}, {"changes", uint64(q.Changes)},
			{"snatPorts", uint64(q.SNATPorts)}, {"snatPortsPerDip", uint64(q.SNATPortsPerDIP)},
			{"probes", uint64(q.Probes)},
		}.flow())
	}
	for _, f := range []struct {
		name     string
		prefixes []netip.Prefix
	}{{"dips", t.DIPs}, {"hosts", t.Hosts}, {"vips", t.VIPs}} {
		if len(f.prefixes) > 0 {
			w.line("%s: %s", f.name, flowList(f.prefixes))
		}
	}
	if len(t.Shared) > 0 {
		w.line("shared:")
	}
	for _, s := range t.Shared {
		names := make([]string, len(s.Tenants))
		for i, name := range s.Tenants {
			names[i] = quote(name)
		}
		text := "tenants: [" + strings.Join(names, ", ") + "]"
		if len(s.DIPs) > 0 {
			text += ", dips: " + flowList(s.DIPs)
		}
		if len(s.VIPs) > 0 {
			text += ", vips: " + flowList(s.VIPs)
		}
		w.line("- {%s}", text)
	}
}

func (w *writer) policy(p *Policy) {
	if p.Tenant != "" {
		w.line("tenant: %s", quote(p.Tenant))
	}
	w.shared(p.Limits, p.Sources, p.Placement)
}

// shared writes the fields that services and policies have in common, without those not set.
func (w *writer) shared(l *Limits, s *Sources, p *Placement) {
	if l != nil {
		w.line("limits: %s", append(numbers{{"packets", l.Packets}, {"connections", l.Connections}}.given(), number{"ping", l.Ping}).all())
	}
	w.sources(s)
	if p != nil {
		w.line("placement: {replicas: %d, by: %s}", p.Replicas, quote(p.By))
	}
}

// sources writes a prefix a line, because there may be many.
func (w *writer) sources(s *Sources) {
	switch {
	case s == nil:
		return
	case len(s.Allow)+len(s.Deny) == 0:
		w.line("sources: {}")
		return
	}
	w.line("sources:")
	w.prefixes("allow", s.Allow)
	w.prefixes("deny", s.Deny)
}

func (w *writer) prefixes(name string, list []netip.Prefix) {
	if len(list) > 0 {
		w.line("  %s:", name)
	}
	for _, p := range list {
		w.line("  - %s", quote(p.String()))
	}
}

// number is a field with its value, numbers are those of a mapping, in order.
type (
	number struct {
		name  string
		value uint64
	}
	numbers []number
)

// given returns those that are not 0.
func (n numbers) given() numbers {
	var out numbers
	for _, f := range n {
		if f.value != 0 {
			out = append(out, f)
		}
	}
	return out
}

// flow returns those that are not 0 on one line.
func (n numbers) flow() string { return n.given().all() }

func (n numbers) all() string {
	texts := make([]string, len(n))
	for i, f := range n {
		texts[i] = fmt.Sprintf("%s: %d", f.name, f.value)
	}
	return "{" + strings.Join(texts, ", ") + "}"
}
