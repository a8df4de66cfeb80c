package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestUnits checks that the service units start existing commands with existing flags.
func TestUnits(t *testing.T) {
	units, err := filepath.Glob("../../packaging/systemd/*.service")
	if err != nil || len(units) != 4 {
		t.Fatalf("units %q, %v", units, err)
	}
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		starts := 0
		for line := range strings.Lines(string(text)) {
			command, found := strings.CutPrefix(strings.TrimSpace(line), "ExecStart=/usr/local/bin/shunt ")
			if !found {
				continue
			}
			starts++
			cmd, args, err := newRoot().Find(strings.Fields(command))
			if err != nil || !cmd.Runnable() {
				t.Errorf("%s: %s: %v", unit, command, err)
				continue
			}
			var flags []string
			for _, arg := range args {
				if arg != "$MANAGER_FLAGS" { // several, of the operator
					flags = append(flags, arg)
				}
			}
			if err := cmd.ParseFlags(flags); err != nil {
				t.Errorf("%s: %s: %v", unit, command, err)
			}
			if rest := cmd.Flags().Args(); len(rest) > 0 {
				t.Errorf("%s: %s: arguments %q", unit, command, rest)
			}
		}
		if starts != 1 {
			t.Errorf("%s: %d lines start Shunt", unit, starts)
		}
	}
}

// unitLines returns the values of a key of a unit, in order.
func unitLines(t *testing.T, unit, key string) (values []string) {
	t.Helper()
	text, err := os.ReadFile("../../packaging/systemd/" + unit)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), key+"="); found {
			values = append(values, value)
		}
	}
	return values
}

// TestUnitsAllowTap checks that units that start a host agent allow the device with which SNAT
// makes taps. ProtectClock= adds a list of allowed devices, and systemd denies all others.
func TestUnitsAllowTap(t *testing.T) {
	for _, unit := range []string{"shunt-host.service", "shunt-run.service"} {
		if allowed := unitLines(t, unit, "DeviceAllow"); !slices.Equal(allowed, []string{"/dev/net/tun rw"}) {
			t.Errorf("%s: DeviceAllow=%q", unit, allowed)
		}
	}
}

// TestReloadChecksTheProgram checks that a reload of a mux or host runs the check of the running
// build against the file that the unit starts, before it ends the agent, and that systemd restarts
// the agent. The check runs as the unit runs it, with a process instead of the agent that records
// its arguments.
func TestReloadChecksTheProgram(t *testing.T) {
	for _, role := range []string{"mux", "host"} {
		unit := "shunt-" + role + ".service"
		reload, start := unitLines(t, unit, "ExecReload"), unitLines(t, unit, "ExecStart")
		if len(reload) != 2 || reload[1] != "/bin/kill -TERM $MAINPID" || len(unitLines(t, unit, "ExecStartPre")) > 0 {
			t.Fatalf("%s: reload %q", unit, reload)
		}
		if restart := unitLines(t, unit, "Restart"); !slices.Equal(restart, []string{"always"}) {
			t.Errorf("%s: Restart=%s: the agent would not come back after a reload", unit, restart)
		}
		script, quoted := strings.CutPrefix(reload[0], "/bin/sh -c '")
		script = strings.ReplaceAll(strings.TrimSuffix(script, "'"), "$$", "$") // as systemd does
		program := strings.Fields(start[0])[0]
		if !quoted || !strings.HasSuffix(script, " "+role+" --check-program "+program) {
			t.Fatalf("%s: %s: expected a check of %s", unit, reload[0], program)
		}
		// This process's program is the test binary, which exits with the exit code of run.
		check := exec.Command("/bin/sh", "-c", strings.ReplaceAll(script, program, "/bin/true"))
		check.Env = append(os.Environ(), "MAINPID="+strconv.Itoa(os.Getpid()), unitCheckVariable+"=1")
		out, err := check.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != exitFailed || !strings.Contains(string(out), "/bin/true: carries no BPF program") {
			t.Errorf("%s: check of another program: %v, %s", unit, err, out)
		}
	}
}

// unitCheckVariable is set for processes of the test binary that run as shunt.
const unitCheckVariable = "SHUNT_TEST_IS_SHUNT"

// TestMain runs the test binary as shunt if unitCheckVariable is set.
func TestMain(m *testing.M) {
	if os.Getenv(unitCheckVariable) != "" {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// TestUnitsAreValid checks that systemd accepts the units.
func TestUnitsAreValid(t *testing.T) {
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Fatalf("systemd-analyze is missing, make setup installs it: %v", err)
	}
	units, err := filepath.Glob("../../packaging/systemd/*.service")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		// Commands must exist.
		text = []byte(strings.ReplaceAll(string(text), "=/usr/local/bin/shunt ", "=/bin/true "))
		copied := filepath.Join(dir, filepath.Base(unit))
		if err := os.WriteFile(copied, text, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(verify, "verify", "--man=no", "--recursive-errors=no", copied).CombinedOutput()
		if err != nil || strings.Contains(string(out), filepath.Base(unit)) {
			t.Errorf("%s: %v: %s", unit, err, out)
		}
	}
}

// TestRunRefusesWrongStarts checks that a wrong command line is reported before anything is made.
func TestRunRefusesWrongStarts(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args string
		exit int
		want string
	}{
		{"run", exitUsage, `shunt run: --file: "": must be a YAML file or a directory of .yaml files`},
		{"run -f x --interface lo --listen x", exitUsage, `shunt run: --listen: "x": must be ADDRESS:PORT or :PORT`},
		{"run -f x --interface lo --listen :0", exitUsage, `shunt run: --listen: ":0": must be ADDRESS:PORT or :PORT`},
		{"run -f x --interface lo --pprof", exitUsage, "shunt run: --pprof: needs --metrics: profiles are served on its address"},
		{"host --interface lo --manager 127.0.0.1:1 --pprof", exitUsage, "shunt host: --pprof: needs --metrics: profiles are served on its address"},
		{"mux --interface lo --manager 127.0.0.1:1 --pprof", exitUsage, "shunt mux: --pprof: needs --metrics: profiles are served on its address"},
		{"manager --data x --metrics :x --pprof", exitUsage, `shunt manager: --metrics: ":x": must be ADDRESS:PORT or :PORT`},
		{"manager --data x --pprof", exitUsage, "shunt manager: --pprof: needs --metrics: profiles are served on its address"},
		{"run -f x", exitUsage, `shunt run: --interface: "": must be a device of this machine`},
		{"run -f x --interface none0", exitFailed, `shunt run: --interface: interface none0: there is none; this machine has `},
		{"run -f " + dir + "/no.yaml --interface lo --data " + dir + "/m", exitFailed, "shunt run: read objects: stat " + dir + "/no.yaml: no such file or directory"},
	} {
		var stderr strings.Builder
		exit := run(strings.Fields(c.args), nil, new(strings.Builder), &stderr)
		if exit != c.exit || !strings.HasPrefix(stderr.String(), c.want) {
			t.Errorf("shunt %s: exit %d, %q; want %d, %q", c.args, exit, stderr.String(), c.exit, c.want)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("refused starts left %v, %v", entries, err)
	}
}
