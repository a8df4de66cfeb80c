package metrics

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/ops/metrics.md anew")

// TestDocs keeps the tables of docs/ops/metrics.md equal to the families.
func TestDocs(t *testing.T) {
	const file, marker = "../../docs/ops/metrics.md", "<!-- families -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	written, got, found := strings.Cut(string(text), marker)
	if !found {
		t.Fatalf("%s: no line %q", file, marker)
	}
	var out strings.Builder
	for _, part := range []struct {
		title    string
		families []*Family
	}{
		{"Muxes and hosts", append(NodeFamilies[:len(NodeFamilies):len(NodeFamilies)], ProbeFamilies...)}, {"Muxes", MuxFamilies}, {"Hosts", HostFamilies},
		{"Managers", append(ManagerFamilies[:len(ManagerFamilies):len(ManagerFamilies)], ManagerHistograms...)},
	} {
		fmt.Fprintf(&out, "\n### %s\n\n| metric | type | labels | series | meaning |\n|---|---|---|---|---|\n", part.title)
		for _, f := range part.families {
			labels := "–"
			if len(f.Labels) > 0 {
				labels = "`" + strings.Join(f.Labels, "` `") + "`"
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s | %s |\n", f.Name, f.Type, labels, f.Series, f.Help)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(written+marker+out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != out.String() {
		t.Errorf("%s is behind the families: run go test ./internal/metrics -run Docs -update", file)
	}
}
