package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Wrong usage is reported before anything is built.
func TestLabRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lab.yaml")
	if err := os.WriteFile(file, []byte("name: x\nmuxes: 99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"lab"}, exitUsage, "needs a subcommand"},
		{[]string{"lab", "up", "--name", "No"}, exitUsage, `name: "No": must be 1 to 24`},
		{[]string{"lab", "up", "--daemon", "gated"}, exitUsage, `routers.daemon: "gated": must be frr or bird`},
		{[]string{"lab", "up", "-f", file}, exitFailed, file + ":2:8: muxes: 99: must be 1 to 16"},
		{[]string{"lab", "up", "-f", file + ".none"}, exitFailed, "no such file"},
		{[]string{"lab", "up", "extra"}, exitUsage, "extra"},
		{[]string{"lab", "down", "--all", "--name", "x"}, exitUsage, "[all name]"},
		{[]string{"lab", "exec", "mux1"}, exitUsage, "at least 2"},
		{[]string{"lab", "status", "--name", "never-made"}, exitFailed, "lab"},
		{[]string{"lab", "exec", "--name", "never-made", "mux1", "--", "true"}, exitFailed, "lab"},
		{[]string{"lab", "down", "--name", "../x"}, exitUsage, `name: "../x": must be 1 to 24`},
		{[]string{"get", "services", "--lab", "../x"}, exitUsage, `name: "../x": must be 1 to 24`},
		{[]string{"lab-load"}, exitUsage, "at least 1"},
	} {
		var out, errs bytes.Buffer
		if code := run(c.args, strings.NewReader(""), &out, &errs); code != c.code || !strings.Contains(errs.String(), c.want) {
			t.Errorf("shunt %s: exit code %d, %q; want %d and %q", strings.Join(c.args, " "), code, errs.String(), c.code, c.want)
		}
	}
}
