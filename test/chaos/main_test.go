// Package chaos breaks a whole cluster by a seeded schedule, under traffic and writes, and then asks whether anything
// that was promised was lost. It needs root and FRR.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/lab"
)

// What the environment says of a run.
const (
	// minutesVariable is how long the schedule of faults runs; defaultDuration without it.
	minutesVariable = "SHUNT_CHAOS_MINUTES"
	// seedVariable is the schedule's seed; one is drawn and printed without it.
	seedVariable    = "SHUNT_CHAOS_SEED"
	defaultDuration = time.Minute
)

var (
	// cluster is the lab of all tests.
	cluster *lab.Lab
	// anyone speaks to the first manager that answers, managers to each of them.
	anyone   shuntv1connect.ManagerClient
	managers = map[string]shuntv1connect.ManagerClient{}
)

func TestMain(m *testing.M) {
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
	program := filepath.Join(dir, "shunt")
	build := exec.Command("go", "build", "-o", program, "../../cmd/shunt")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build shunt: %w\n%s", err, out)
	}
	t := lab.DefaultTopology()
	t.Name, t.Clients, t.Managers, t.Muxes, t.Hosts.Count = fmt.Sprintf("chaos%d", os.Getpid()), 2, 3, 3, 4
	defer func() {
		if down := lab.Down(ctx, t.Name); down != nil {
			code, err = 1, errors.Join(err, down)
		}
	}()
	cluster, err = lab.Up(ctx, t, lab.Options{Binary: program, Progress: func(line string) { fmt.Println(line) }})
	if err != nil {
		return 1, err
	}
	// They outlive the file that their certificate comes from: it is among what the schedule moves.
	if anyone, err = cluster.Client(); err != nil {
		return 1, err
	}
	for _, name := range named(lab.KindManager, t.Managers) {
		if managers[name], err = cluster.ClientOf(name); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

// named are the names of the first nodes of a kind.
func named(kind lab.Kind, count int) []string {
	var out []string
	for i := 1; i <= count; i++ {
		out = append(out, fmt.Sprintf("%s%d", kind, i))
	}
	return out
}

// fromEnvironment reads a whole number.
func fromEnvironment(t *testing.T, name string) (value uint64, given bool) {
	t.Helper()
	text, given := os.LookupEnv(name)
	if !given {
		return 0, false
	}
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %q: must be a whole number", name, text)
	}
	return value, true
}

// eventually is how long what must happen may take on a busy machine; attemptTimeout bounds one look.
const (
	eventually     = 90 * time.Second
	attemptTimeout = 10 * time.Second
)

// await looks at a condition until it is met, and fails the test when it is not in time.
func await(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	if err := poll(context.Background(), condition); err != nil {
		t.Fatalf("%s: not within %s: %v", what, eventually, err)
	}
}

// poll looks at a condition until it is met; its error is what was missing at the end: by the last look that was not broken off, if
// there is one, as what is broken off says only where it was then.
func poll(ctx context.Context, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, eventually)
	defer cancel()
	var missing error
	for {
		one, done := context.WithTimeout(ctx, attemptTimeout)
		err := condition(one)
		broken := one.Err() != nil
		done()
		if err == nil {
			return nil
		}
		if missing == nil || !broken {
			missing = err
		}
		select {
		case <-ctx.Done():
			return missing
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
			if tail := cluster.Tail(n.Name, 6<<10); tail != "" {
				t.Logf("--- end of %s\n%s", cluster.LogPath(n.Name), tail)
			}
		}
	})
}
