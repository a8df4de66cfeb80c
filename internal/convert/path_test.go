package convert

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"pgregory.net/rapid"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/fields"
)

// TestPathsByNumberAndName: the natural path of every field of random objects, converted to
// numbers, is found again, and leads to the same field.
func TestPathsByNumberAndName(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := Content(ToObject(randomObject(rt)))
		if place, _ := Schema.Twice(m); place != "" {
			return
		}
		for _, f := range Schema.List(m) {
			number, found := Schema.Number(m, f.Path)
			if !found {
				rt.Fatalf("%s is not found", f.Path)
			}
			if got := Schema.Name(m, number); got != f.Path {
				rt.Fatalf("%s is by number %s, and that by name %s", f.Path, number, got)
			}
			selected := Schema.Written(m, func(path string) bool { return path == number })
			if alone := Schema.List(selected); !f.Item && (len(alone) == 0 || !contains(alone, f)) {
				rt.Fatalf("%s is by number %s, and there is %v", f.Path, number, alone)
			}
		}
	})
}

func throughJSONText(t *testing.T, text string) *apiv1.Object {
	t.Helper()
	o := &apiv1.Object{}
	if err := protojson.Unmarshal([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	return o
}

func contains(list []fields.Field, f fields.Field) bool {
	for _, o := range list {
		if o.Path == f.Path && o.Same(f) {
			return true
		}
	}
	return false
}

func TestPathsOfNothing(t *testing.T) {
	m := Content(throughJSONText(t, `{"service": {"name": "web", "endpoints": [{"protocol": "tcp", "port": "80", "backends": [{"dip": ["2001:db8::1"], "port": 8080, "host": "10.0.0.1"}]}]}}`))
	for path, want := range map[string]string{
		"endpoints[0]":                    "endpoints[tcp/80]",
		"endpoints[0].backends[0].dip[0]": "endpoints[tcp/80].backends[[2001:db8::1]:8080].dip[0]",
		"endpoints[0].health.http.path":   "endpoints[tcp/80].health.http.path",
		"vip[3]":                          "vip[3]",
		"endpoints[7].port":               "endpoints[7].port",
		"endpoints[0].backends[7].port":   "endpoints[tcp/80].backends[7].port",
		"sources.allow[2]":                "sources.allow[2]",
		"no.such[1].field":                "no.such[1].field",
	} {
		if got := Schema.Name(m, path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	for path, want := range map[string]string{
		"endpoints[tcp/80].backends[[2001:db8::1]:8080].dip[0]": "endpoints[0].backends[0].dip[0]", "endpoints[udp/80].port": "", "vip[0]": "vip[0]",
		"endpoints[tcp/80].backends[10.0.0.1].weight": "",
	} {
		if got, found := Schema.Number(m, path); found != (want != "") || found && got != want {
			t.Errorf("%s is %s %v, want %s", path, got, found, want)
		}
	}
}
