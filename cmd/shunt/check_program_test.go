package main

import (
	"strings"
	"testing"
)

// TestCheckProgram checks the output and exit codes of --check-program in both roles.
func TestCheckProgram(t *testing.T) {
	empty := t.TempDir()
	for _, role := range []string{"mux", "host"} {
		for _, c := range []struct {
			args []string
			code int
			want string
		}{
			{[]string{"--check-program", "/proc/self/exe", "--bpffs", empty}, exitOK, "/proc/self/exe starts with empty tables: there are no pins in " + empty + "\n"},
			{[]string{"--check-program", "/bin/true", "--bpffs", empty}, exitFailed, "check program: read program: /bin/true: carries no BPF program "},
			{[]string{"--check-program", empty + "/nope"}, exitFailed, "check program: read program: open " + empty + "/nope: no such file"},
			{[]string{"--check-program", ""}, exitUsage, `--check-program: "": must be the file of a shunt`},
			{[]string{"--check-program", "/proc/self/exe", "--stop"}, exitUsage, "stop"},
		} {
			var out strings.Builder
			code := run(append([]string{role}, c.args...), strings.NewReader(""), &out, &out)
			if code != c.code || !strings.Contains(out.String(), c.want) {
				t.Errorf("%s %v: exit code %d: %s; want %d and %q", role, c.args, code, out.String(), c.code, c.want)
			}
		}
	}
}
