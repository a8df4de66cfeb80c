package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnits: the service units start commands that there are, with flags that they have.
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

// TestRunRefusesWrongStarts: what is wrong on the command line is told before anything is made.
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
