package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestMuxRefusesWrongStarts(t *testing.T) {
	run1 := t.TempDir()
	cases := []struct {
		args string
		exit int
		want string
	}{
		{"mux", exitUsage, `shunt mux: --interface: "": must be a device of this machine`},
		{"mux --interface lo", exitUsage, `shunt mux: --manager: "": must be ADDRESS:PORT`},
		{"mux --interface lo --manager :8443", exitUsage, `shunt mux: --manager: ":8443": must be ADDRESS:PORT`},
		{"mux --interface lo --manager 10.0.0.1:1 --xdp-mode skb", exitUsage, `shunt mux: --xdp-mode: "skb": must be native or generic`},
		{"mux --interface lo --manager 10.0.0.1:1 --speaker-hold 0s", exitUsage, `shunt mux: --speaker-hold: 0s: must be above 0`},
		{"mux --interface none0 --manager 10.0.0.1:1", exitFailed, `shunt mux: --interface: interface none0: there is none; this machine has `},
		{"mux --drain --run " + run1, exitFailed, "shunt mux: no agent is running with run directory " + run1},
		{"mux --drain --stop", exitUsage, "shunt mux: if any flags in the group [drain undrain stop] are set"},
		{"mux-speaker --hold 0s", exitUsage, "shunt mux-speaker: --hold: 0s: must be above 0"},
	}
	for _, c := range cases {
		var stderr bytes.Buffer
		exit := run(strings.Fields(c.args), nil, new(bytes.Buffer), &stderr)
		if exit != c.exit || !strings.HasPrefix(stderr.String(), c.want) {
			t.Errorf("shunt %s: exit %d, %q; want %d, %q", c.args, exit, stderr.String(), c.exit, c.want)
		}
	}
}
