// Package chaos breaks a complete cluster by a seeded schedule, under traffic and writes, and then
// checks whether any promise was broken. It needs root, and FRR or BIRD.
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

// Environment variables of a run, and their defaults.
const (
	// minutesVariable is how long the schedule of faults runs. The default is defaultDuration.
	minutesVariable = "SHUNT_CHAOS_MINUTES"
	// seedVariable is the schedule's seed. Without it, a seed is drawn and printed.
	seedVariable    = "SHUNT_CHAOS_SEED"
	defaultDuration = time.Minute
	// ownVersion is the version of the program of this source.
	ownVersion = "dev"
	// daemonVariable selects the routing daemon, frr or bird. The default is FRR.
	daemonVariable = "SHUNT_LAB_DAEMON"
	// otherVariable names the program that replaces managers and agents for a while, such as that
	// of a previous release. The default is this source with another version.
	otherVariable = "SHUNT_CHAOS_OTHER"
)

var (
	// cluster is the lab of all tests.
	cluster *lab.Lab
	// anyone calls the first manager that responds. managers call one manager each.
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
	// They outlive the file of their certificate, which the schedule may move.
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

// named returns the names of the first nodes of a kind.
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

// eventually bounds the wait for a condition on a busy machine. attemptTimeout bounds one poll. A
// poll of everything makes 200 traces, which took 63 ms each with a load of 37 on two cores.
const (
	eventually     = 90 * time.Second
	attemptTimeout = 30 * time.Second
)

// await polls a condition until it is met, and fails the test on timeout.
func await(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	if err := poll(context.Background(), condition); err != nil {
		t.Fatalf("%s: not within %s: %v", what, eventually, err)
	}
}

// poll polls a condition until a poll that was not canceled meets it. Its error is that of the last
// complete poll and, if the very last poll was canceled, a note of that.
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

// TestPollReportsTheLastLook checks that a canceled poll hides neither the cancellation nor the
// missing condition of the poll before.
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

// TestPollTrustsNoLookThatWasBrokenOff checks that a poll whose context ended meets no condition,
// even if it returns nil.
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

// logs prints the ends of the logs of managers and agents when the test fails, and keeps complete
// logs in a directory, because the lines that explain a broken connection may be long before the
// end.
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
