package lb_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestMissed: a change is refused if it deletes a Policy or a Tenant that an object uses
// afterwards, and the fault names these objects.
func TestMissed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state, all := lb.NewState(), map[string]lb.Object{}
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			before := map[string]lb.Object{}
			for k, o := range all {
				before[k] = o
			}
			edits := rapid.SliceOfN(rapid.Custom(edit), 1, 5).Draw(t, "edits")
			last := map[string]lb.Edit{}
			for _, e := range edits {
				at := lb.Ref(e.Kind, e.Name)
				last[at] = e
				if delete(all, at); e.Object != nil {
					all[at] = e.Object
				}
			}
			want := map[string]bool{} // "policies/a services/b"
			for at, e := range last {
				if e.Object != nil || before[at] == nil {
					continue
				}
				for name, o := range all {
					svc, isService := o.(*lb.Service)
					p, isPolicy := o.(*lb.Policy)
					if e.Kind == lb.KindPolicy && isService && svc.Policy == e.Name ||
						e.Kind == lb.KindTenant && (isService && svc.Tenant == e.Name || isPolicy && p.Tenant == e.Name) {
						want[at+" "+name] = true
					}
				}
			}
			got := 0
			for _, v := range state.Missed(edits...) {
				_, names, _ := strings.Cut(v.Allowed, ": ")
				for _, name := range strings.Split(names, ", ") {
					if got++; !want[v.Field+" "+name] {
						t.Fatalf("refused: %s", v)
					}
				}
			}
			if got != len(want) {
				t.Fatalf("%d named, want %v", got, want)
			}
			state.Apply(edits...)
		}
	})
}

func TestMissedByMany(t *testing.T) {
	state := lb.NewState()
	state.Apply(lb.PutEdit(&lb.Policy{Name: "gold"}))
	for i := range 12 {
		state.Apply(lb.PutEdit(&lb.Service{Name: fmt.Sprintf("s%02d", i), Policy: "gold"}))
	}
	expect(t, state.Missed(lb.Edit{Kind: lb.KindPolicy, Name: "gold"}),
		"policies/gold: must not be deleted while services name it: services/s00, services/s01, services/s02, services/s03, services/s04, "+
			"services/s05, services/s06, services/s07, services/s08, services/s09 and 2 more")
}
