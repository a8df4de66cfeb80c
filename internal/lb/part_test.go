package lb_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestValidatePart: validation of a part of the objects finds the same faults as of all, except
// those of missing objects.
func TestValidatePart(t *testing.T) {
	text := `kind: Service
name: a
vip: 203.0.113.10
policy: gold
endpoints:
- {protocol: tcp, port: 80, path: nat, backends: [{dip: 10.20.1.11}]}
---
kind: Service
name: b
vip: 203.0.113.10
endpoints:
- {protocol: tcp, port: 81, backends: [{dip: 10.20.1.11, host: 10.20.1.1}]}
`
	network := `---
kind: Network
name: dc1
vips: [192.0.2.0/24]
underlay: [172.16.0.0/16]
`
	strs := func(faults []lb.Violation) (out []string) {
		for _, f := range faults {
			out = append(out, f.Field)
		}
		return out
	}
	for _, test := range []struct {
		name, text  string
		part, whole []string
	}{
		{"no network, no mux, no policy", text,
			[]string{"services/b: vip[0]"},
			[]string{"services/a: vip[0]", "services/a: policy", "services/a: endpoints[0].path", "services/b: vip[0]", "services/b: vip[0]"}},
		{"a network that has neither", text + network,
			[]string{"services/a: vip[0]", "services/a: endpoints[0].backends[0].dip[0]", "services/b: vip[0]", "services/b: vip[0]", "services/b: endpoints[0].backends[0].host", "services/b: endpoints[0].backends[0].dip[0]"},
			nil},
	} {
		objects, err := lb.Parse(strings.NewReader(test.text), "x.yaml")
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		part, whole := strs(lb.ValidatePart(objects)), strs(lb.ValidateState(objects))
		if !slices.Equal(part, test.part) {
			t.Errorf("%s: part: %q, want %q", test.name, part, test.part)
		}
		if test.whole != nil && !slices.Equal(whole, test.whole) {
			t.Errorf("%s: whole: %q, want %q", test.name, whole, test.whole)
		}
		for _, f := range part {
			if !slices.Contains(whole, f) {
				t.Errorf("%s: %s is a fault of the part and not of the whole", test.name, f)
			}
		}
	}
}
