package lb

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Missed returns the faults of edits that delete objects in use: a Policy that services use, a
// Tenant that owns services or policies.
func (s *State) Missed(edits ...Edit) []Violation {
	a := s.after(edits)
	var out []Violation
	for _, i := range slices.SortedFunc(maps.Keys(a.edits), id.compare) {
		if a.edits[i] != nil || s.objects[i] == nil {
			continue
		}
		var names []string
		what := ""
		switch i.kind {
		case KindPolicy:
			what, names = "services name it", a.which(func(o Object) bool {
				svc, ok := o.(*Service)
				return ok && svc.Policy == i.name
			})
		case KindTenant:
			what, names = "it owns objects", a.which(func(o Object) bool { return tenantOf(o) == i.name })
		}
		if len(names) > 0 {
			out = append(out, Violation{Field: Ref(i.kind, i.name), Allowed: fmt.Sprintf("must not be deleted while %s: %s", what, few(names))})
		}
	}
	return out
}

// tenantOf returns the owner of the object; empty for objects without one.
func tenantOf(o Object) string {
	switch o := o.(type) {
	case *Service:
		return o.Tenant
	case *Policy:
		return o.Tenant
	}
	return ""
}

// which returns the names of the objects that fit, in order. It checks all objects.
func (a *after) which(fits func(Object) bool) (out []string) {
	for i, o := range a.objects {
		if _, edited := a.edits[i]; !edited && fits(o) {
			out = append(out, Ref(i.kind, i.name))
		}
	}
	for i, o := range a.edits {
		if o != nil && fits(o) {
			out = append(out, Ref(i.kind, i.name))
		}
	}
	slices.Sort(out)
	return out
}

// few joins at most maxNames of the names.
func few(names []string) string {
	const maxNames = 10
	if len(names) <= maxNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}
