// Package lab_test tests the complete system in network namespaces: real kernel, real router, real
// servers. It needs root, FRR and BIRD. All tests except those of the lab itself share one lab.
package lab_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
)

// shared is the lab of most tests. program is the shunt that it and all others run.
var (
	shared  *lab.Lab
	program string
)

// eventually is how long a test waits for an event before it fails.
const eventually = time.Minute

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "shunt-lab-test")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "shunt")
	build := exec.Command("go", "build", "-o", program, "../../cmd/shunt")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build shunt: %w\n%s", err, out)
	}
	t := lab.DefaultTopology()
	t.Name = fmt.Sprintf("test%d", os.Getpid())
	t.Hosts.VMs = 2
	t.Routers.Daemon = daemon()
	defer func() {
		if down := lab.Down(ctx, t.Name); down != nil && err == nil {
			code, err = 1, down
		}
	}()
	shared, err = lab.Up(ctx, t, lab.Options{Binary: program, Progress: func(line string) { fmt.Println(line) }})
	if err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// daemon returns the routing daemon of the shared lab: SHUNT_LAB_DAEMON, or FRR by default.
func daemon() lab.Daemon {
	if d := os.Getenv("SHUNT_LAB_DAEMON"); d != "" {
		return lab.Daemon(d)
	}
	return lab.FRR
}
