package manager

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/fields"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// making are the fields of which no object can do without one: whoever said one of them made the object.
var making = map[lb.Kind][]string{
	lb.KindService: {"vip"}, lb.KindNode: {"role"}, lb.KindNetwork: {"vips", "underlay"},
}

// madeBy tells whether the source made the object and nobody else did. A drain made nothing.
func (r *record) madeBy(kind lb.Kind, source string) bool {
	content, packed := r.said()
	owners := convert.Schema.Expand(content, packed)
	made := func(o fields.Owner) bool {
		if len(making[kind]) == 0 {
			return true // tenants and policies have a name alone
		}
		return slices.ContainsFunc(making[kind], func(field string) bool { return slices.Contains(o.Fields, field) })
	}
	mine := slices.ContainsFunc(owners, func(o fields.Owner) bool { return o.Source == source && made(o) })
	return mine && !slices.ContainsFunc(owners, func(o fields.Owner) bool { return o.Source != source && made(o) })
}

// prune deletes what the source made and does not say any more.
func (w *write) prune(t *term, source string, opinions []opinion) error {
	said := map[ref]bool{}
	for _, op := range opinions {
		said[refOf(op.Object)] = true
	}
	for _, r := range w.base.madeBy(source, said) {
		// What is another tenant's may have been made by a source of the same name, and so may the Tenant, by the operator.
		if w.by.role == pki.RoleTenant && (r.kind == lb.KindTenant || !w.by.ownsRecord(w.base.record(r))) {
			continue
		}
		if err := w.delete(r, t.revocation(r.name)); err != nil {
			return err
		}
	}
	return nil
}

// madeBy lists what the source made, but for what it still says, ordered.
func (s *snapshot) madeBy(source string, said map[ref]bool) []ref {
	s.v.mu.RLock()
	records := maps.Clone(s.v.records)
	s.v.mu.RUnlock()
	var out []ref
	for r, rec := range records {
		if !said[r] && rec.madeBy(r.kind, source) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b ref) int { return cmp.Or(-cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name)) })
	return out
}
