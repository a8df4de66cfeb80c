// Package chaos breaks a whole cluster by a seeded schedule, under traffic and writes, and then asks whether anything
// that was promised was lost. It needs root, and FRR or BIRD.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
	// ownVersion is the version of the program of this source.
	ownVersion = "dev"
	// daemonVariable names the routing daemon, frr or bird; FRR without it.
	daemonVariable = "SHUNT_LAB_DAEMON"
	// otherVariable names the program that takes the place of managers and agents for a while, such as a former release's; without it that is
	// this source with another version.
	otherVariable = "SHUNT_CHAOS_OTHER"
)

var (
	// cluster is the lab of all tests.
	cluster *lab.Lab
	// anyone speaks to the first manager that answers, managers to each of them.
	anyone   shuntv1connect.ManagerClient
	managers = map[string]shuntv1connect.ManagerClient{}
	// otherBuild is the program of otherVariable, and otherVersion the version that it reports.
	otherBuild, otherVersion string
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
	if err := buildShunt(program, ownVersion); err != nil {
		return 1, err
	}
	if otherBuild = os.Getenv(otherVariable); otherBuild == "" {
		otherBuild = filepath.Join(dir, "shunt-other")
		if err := buildShunt(otherBuild, "v0.0.0-other"); err != nil {
			return 1, err
		}
	}
	if otherVersion, err = versionOf(otherBuild); err != nil {
		return 1, err
	}
	if otherVersion == ownVersion {
		return 1, fmt.Errorf("%s: %q: its version is %q: must be another than that of this source", otherVariable, otherBuild, otherVersion)
	}
	t := lab.DefaultTopology()
	t.Name, t.Clients, t.Managers, t.Muxes, t.Hosts.Count = fmt.Sprintf("chaos%d", os.Getpid()), 2, 3, 3, 4
	if d := os.Getenv(daemonVariable); d != "" {
		t.Routers.Daemon = lab.Daemon(d)
	}
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

// buildShunt builds the program of this source, with a version.
func buildShunt(program, version string) error {
	build := exec.Command("go", "build", "-ldflags", "-X main.version="+version, "-o", program, "../../cmd/shunt")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build shunt: %w\n%s", err, out)
	}
	return nil
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

// eventually is how long a condition may take on a busy machine; attemptTimeout bounds one look at it. A look at everything makes 200 traces, which
// took 63 ms each with a load of 37 on two cores.
const (
	eventually     = 90 * time.Second
	attemptTimeout = 30 * time.Second
)

// await looks at a condition until it is met, and fails the test when it is not in time.
func await(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	if err := poll(context.Background(), condition); err != nil {
		t.Fatalf("%s: not within %s: %v", what, eventually, err)
	}
}

// poll looks at a condition until it is met by a look that was not broken off. Its error is that of the last look that had its time, and where the last look of all was broken off.
func poll(ctx context.Context, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, eventually)
	defer cancel()
	var missing, cut error
	for {
		one, done := context.WithTimeout(ctx, attemptTimeout)
		err := condition(one)
		broken := one.Err() != nil
		done()
		if err == nil && !broken {
			return nil
		}
		if cut = nil; broken && err == nil {
			cut = errors.New("the last look was broken off")
		} else if broken {
			cut = fmt.Errorf("the last look was broken off: %w", err)
		} else {
			missing = err
		}
		select {
		case <-ctx.Done():
			return errors.Join(missing, cut)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestPollReportsTheLastLook: a look that is broken off hides neither that it was nor the missing condition of the look before.
func TestPollReportsTheLastLook(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	err := poll(ctx, func(context.Context) error {
		if looks++; looks == 1 {
			return errors.New("mux2 is late")
		}
		cancel()
		return errors.New("trace of mux3")
	})
	if err == nil || !strings.Contains(err.Error(), "mux2 is late") || !strings.Contains(err.Error(), "broken off: trace of mux3") {
		t.Errorf("the error is %v: must name both", err)
	}
}

// TestPollTrustsNoLookThatWasBrokenOff: a look whose context ended meets no condition, although it found nothing missing.
func TestPollTrustsNoLookThatWasBrokenOff(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := poll(ctx, func(context.Context) error {
		cancel()
		return nil
	})
	if err == nil {
		t.Error("the look counts")
	}
}

// logs prints the ends of the logs of managers and agents when the test fails, and keeps whole logs in a directory: a connection that breaks after some
// minutes is explained by lines that are long past the end.
func logs(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		dir, err := os.MkdirTemp("", "chaos-logs-")
		if err != nil {
			t.Error(err)
		}
		t.Logf("whole logs are in %s", dir)
		for _, n := range cluster.Topology.Nodes() {
			if tail := cluster.Tail(n.Name, 6<<10); tail != "" {
				t.Logf("--- end of %s\n%s", cluster.LogPath(n.Name), tail)
			}
			if b, err := os.ReadFile(cluster.LogPath(n.Name)); err == nil {
				if err := os.WriteFile(filepath.Join(dir, n.Name+".log"), b, 0o600); err != nil {
					t.Error(err)
				}
			}
		}
	})
}
