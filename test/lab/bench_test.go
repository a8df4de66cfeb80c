package lab_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"
)

// TestBenchCompare checks that a build compared with itself has its figures in both columns. The
// limit is high because the figures of short runs are meaningless.
func TestBenchCompare(t *testing.T) {
	command := exec.Command(program, "bench", "compare", "--base", program, "--suites", "rings,place", "--case", "dead", "--short", "--rounds", "1",
		"--limit", "1e6", "--reasons", "../../docs/bench-reasons.yaml", "-o", "json")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var line struct {
		Suite, Case, Field, Result string
		Base, Present, Ratio       float64
	}
	if err := json.Unmarshal(out, &line); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if line.Suite != "rings" || line.Case != "dead" || line.Field != "ms" || line.Result != "ok" || line.Base <= 0 || line.Present <= 0 || line.Ratio <= 0 {
		t.Errorf("%s", out)
	}
}
