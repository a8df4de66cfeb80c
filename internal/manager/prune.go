package manager

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/fields"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/pki"
)

// making lists, by kind, the fields of which every object needs one. A source that owns one of them
// made the object.
var making = map[lb.Kind][]string{
	lb.KindService: {"vip"}, lb.KindNode: {"role"}, lb.KindNetwork: {"vips", "underlay"},
}

// madeBy reports whether the source made the object and no other source did. A drain makes none.
func (r *record) madeBy(kind lb.Kind, source string) bool {
	content, packed := r.said()
	owners := convert.Schema.Expand(content, packed)
	made := func(o fields.Owner) bool {
		if len(making[kind]) == 0 {
			return true // tenants and policies need only a name
		}
		return slices.ContainsFunc(making[kind], func(field string) bool { return slices.Contains(o.Fields, field) })
	}
	mine := slices.ContainsFunc(owners, func(o fields.Owner) bool { return o.Source == source && made(o) })
	return mine && !slices.ContainsFunc(owners, func(o fields.Owner) bool { return o.Source != source && made(o) })
}

// prune deletes the objects that the source made and that are not in its opinions, and withdraws
// its fields of other objects.
func (w *write) prune(t *term, source string, opinions []opinion) error {
	said := map[ref]bool{}
	for _, op := range opinions {
		said[refOf(op.Object)] = true
	}
	var silent []opinion
	for _, r := range w.base.saidBy(source, said) {
		rec := w.base.record(r)
		// An object of another tenant may have been made by a source of the same name, and the
		// Tenant by the operator.
		if w.by.role == pki.RoleTenant && (r.kind == lb.KindTenant || !w.by.ownsRecord(rec)) {
			continue
		}
		if !rec.madeBy(r.kind, source) {
			op, err := rec.silence(source)
			if err != nil {
				return fmt.Errorf("%s: %w", lb.Ref(r.kind, r.name), err)
			}
			silent = append(silent, op)
		} else if err := w.delete(r, t.revocation(r.name)); err != nil {
			return err
		}
	}
	return w.apply(silent)
}

// silence returns the opinion of a source that sets no field of the object.
func (r *record) silence(source string) (opinion, error) {
	content, _ := r.said()
	said, faults := convert.Said(convert.WithContent(convert.Schema.Select(content, fields.Set{})), 0)
	if len(faults) > 0 {
		return opinion{}, invalid{faults}
	}
	return opinion{Statement: said, source: source}, nil
}

// saidBy lists the objects with fields of the source, except those in said, sorted.
func (s *snapshot) saidBy(source string, said map[ref]bool) []ref {
	s.v.mu.RLock()
	records := maps.Clone(s.v.records)
	s.v.mu.RUnlock()
	var out []ref
	for r, rec := range records {
		_, owners := rec.said()
		if !said[r] && slices.ContainsFunc(owners, func(o fields.Owner) bool { return o.Source == source }) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b ref) int { return cmp.Or(-cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name)) })
	return out
}
