package lb_test

import (
	"os"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestHealthReference: docs/reference.md has every field of health, and of each kind of check.
func TestHealthReference(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	for mapping, inside := range map[string]string{
		"{zzz: 1}": "", "{tcp: {zzz: 1}}": "tcp.", "{http: {zzz: 1}}": "http.", "{grpc: {zzz: 1}}": "grpc.", "{udp: {zzz: 1}}": "udp.",
		"{dns: {zzz: 1}}": "dns.", "{external: {zzz: 1}}": "external.", "{damping: {zzz: 1}}": "", "{passive: {zzz: 1}}": "",
		"{grpc: {tls: {zzz: 1}}}": "https.",
	} {
		_, err := lb.Parse(strings.NewReader("kind: Service\nendpoints: [{health: "+mapping+"}]"), "test")
		if err == nil {
			t.Fatalf("%s was taken", mapping)
		}
		_, list, found := strings.Cut(err.Error(), "unknown field, must be ")
		list, _, _ = strings.Cut(list, "\n")
		if !found {
			t.Fatalf("%s: %v", mapping, err)
		}
		for name := range strings.SplitSeq(strings.ReplaceAll(list, " or ", ", "), ", ") {
			if !strings.Contains(string(text), "`"+inside+name+"`") {
				t.Errorf("%s%s is not in docs/reference.md", inside, name)
			}
		}
	}
}
