package lab

import (
	"strings"
	"testing"
)

func TestTopologyDefaults(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "name: demo\n", `name: demo
clients: 1
routers: {count: 1, daemon: frr}
muxes: 2
hosts: {count: 3, vms: 1}
managers: 1
mtu: 1500
`} {
		got, err := ParseTopology(strings.NewReader(text), "lab.yaml")
		if err != nil {
			t.Errorf("parse %q: %v", text, err)
		}
		if got != DefaultTopology() {
			t.Errorf("parse %q = %+v, want the default", text, got)
		}
	}
}

func TestTopologyPartsKeepDefaults(t *testing.T) {
	got, err := ParseTopology(strings.NewReader("name: big\nhosts: {count: 9}\nrouters: {daemon: bird}\n"), "lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultTopology()
	want.Name, want.Hosts.Count, want.Routers.Daemon = "big", 9, BIRD
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestTopologyRefuses(t *testing.T) {
	for text, want := range map[string][]string{
		"muxs: 2\n":                      {"lab.yaml:1:1", "muxs", "unknown field"},
		"name: demo\nhosts: {vm: 2}\n":   {"lab.yaml:2:9", "vm", "unknown field"},
		"muxes: two\n":                   {"lab.yaml:1:8"},
		"muxes: 0\n":                     {"lab.yaml:1:8: muxes: 0: must be 1 to 16"},
		"muxes: 17\n":                    {"muxes: 17: must be 1 to 16"},
		"clients: -1\n":                  {"clients: -1: must be 1 to 200"},
		"hosts:\n  count: 201\n":         {"lab.yaml:2:10: hosts.count: 201: must be 1 to 200"},
		"hosts: {vms: 0}\n":              {"hosts.vms: 0: must be 1 to 200"},
		"routers: {count: 2}\n":          {"lab.yaml:1:18: routers.count: 2: not supported by this version; must be 1"},
		"managers: 2\n":                  {"managers: 2: must be 1, 3 or 5"},
		"routers: {daemon: gated}\n":     {`routers.daemon: "gated": must be frr or bird`},
		"mtu: 1279\n":                    {"mtu: 1279: must be 1280 to 9000"},
		"name: Demo\n":                   {`name: "Demo": must be 1 to 24 letters`},
		"name: a/b\n":                    {`name: "a/b"`},
		"name: demo-\n":                  {`name: "demo-"`},
		"muxes: 0\nclients: 0\n":         {"muxes: 0", "clients: 0"},
		"name: [\n":                      {"lab.yaml:"},
		"muxes: 2\nmuxes: 3\n":           {"lab.yaml:2:"},
		"hosts: 3\n":                     {"lab.yaml:1:"},
		"muxes: 99999999999999999999\n":  {"lab.yaml:1:"},
		"muxes: 2\n---\nname: another\n": {"one document"},
	} {
		_, err := ParseTopology(strings.NewReader(text), "lab.yaml")
		if err == nil {
			t.Errorf("parse %q: no error", text)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("parse %q: error %q does not contain %q", text, err, part)
			}
		}
	}
}
