//go:build chaos

// Package chaos breaks a whole cluster by a seeded schedule, under traffic and writes, and then asks whether anything
// that was promised was lost.
package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
)

var (
	duration = flag.Duration("chaos.for", 45*time.Second, "how long the schedule of faults runs")
	seedFlag = flag.Uint64("chaos.seed", 0, "seed of the schedule; 0 draws one and prints it")
)

// program is the shunt that the lab runs.
var program string

// cluster is the lab of all tests.
var cluster *lab.Lab

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "shunt-chaos")
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
	t.Name, t.Managers, t.Muxes, t.Hosts.Count = fmt.Sprintf("chaos%d", os.Getpid()), 3, 3, 4
	defer func() {
		if down := lab.Down(ctx, t.Name); down != nil {
			code, err = 1, errors.Join(err, down)
		}
	}()
	cluster, err = lab.Up(ctx, t, lab.Options{Binary: program, Progress: func(line string) { fmt.Println(line) }})
	if err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// eventually is how long what must happen may take on a busy machine.
const eventually = 60 * time.Second

// await looks at a condition until it is met, and fails the test when it is not in time.
func await(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	for {
		err := condition(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, eventually, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// logs prints the ends of the logs of managers and agents when the test fails.
func logs(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, n := range cluster.Topology.Nodes() {
			if tail := cluster.Tail(n.Name, 3<<10); tail != "" {
				t.Logf("--- end of %s\n%s", cluster.LogPath(n.Name), tail)
			}
		}
	})
}
