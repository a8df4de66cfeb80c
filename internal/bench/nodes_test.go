package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// TestNodesHearWhatConcernsThem runs the suite with 200 nodes. All get their plans, again after the
// manager was killed. Each change is sent only to the node that it concerns, even while some nodes
// do not read. Its times are not checked.
func TestNodesHearWhatConcernsThem(t *testing.T) {
	program := filepath.Join(t.TempDir(), "shunt")
	build := exec.Command("go", "build", "-o", program, "../../cmd/shunt")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build shunt: %v\n%s", err, out)
	}
	var got []string
	o := Options{Short: true, Program: program, Progress: func(line string) { t.Log(line) }}
	if err := nodesSuite.Run(t.Context(), o, func(r Row) {
		t.Log(r)
		got = append(got, r.Case)
		if r.Get("nodes") != nodesShort {
			t.Errorf("%s: %v nodes", r.Case, r.Get("nodes"))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, nodesCases) {
		t.Errorf("cases %v, want %v", got, nodesCases)
	}
}
