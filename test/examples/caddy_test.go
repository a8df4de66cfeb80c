// Package examples_test runs the tests of examples in docs that are separate modules, so that their
// dependencies are not in Shunt's go.mod.
package examples_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

const caddyExample = "../../docs/examples/quic/caddy"

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = caddyExample
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// TestCaddy checks that Caddy with the example's module keeps connections that migrate, through a
// key rotation and a reload, and that its command builds.
func TestCaddy(t *testing.T) {
	modfile := run(t, "./modfile.sh", t.TempDir())
	t.Log(run(t, "go", "test", "-count=1", "-modfile", modfile, "."))
	run(t, "go", "vet", "-modfile", modfile, "./...")
}
