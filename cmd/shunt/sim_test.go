package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Options that cannot be simulated are wrong usage.
func TestSimRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"sim"}, "needs a subcommand: broken, completion, forged, idle, imbalance"},
		{[]string{"sim", "broken", "churn"}, `takes no arguments, not "churn"`},
		{[]string{"sim", "broken", "--servers", "1"}, "--servers: 1: must be 2 to 4000"},
		{[]string{"sim", "broken", "--changes", "501"}, "--changes: 501: must be 1 to 500"},
		{[]string{"sim", "broken", "--servers", "10", "--changes", "9"}, "--changes: 9: must leave a server of 10"},
		{[]string{"sim", "broken", "--connections", "0"}, "--connections: 0: must be 1 to 1000000"},
		{[]string{"sim", "broken", "--lasting", "2h"}, "--lasting: 2h0m0s: must be 1ms to 1h"},
		{[]string{"sim", "forged", "--servers", "10,32749"}, "--servers: 32749: must be 2 to 32748"},
		{[]string{"sim", "forged", "--tries", "0"}, "--tries: 0: must be 1 to 100000000"},
		{[]string{"sim", "idle", "--idle", "1s,0s"}, "--idle: 0s: must be 1ms to 240h"},
		{[]string{"sim", "idle", "--pushes", "0"}, "--pushes: 0: must be 1 to 1000000"},
		{[]string{"sim", "imbalance", "--servers", "1"}, "--servers: 1: must be 2 to 4000"},
		{[]string{"sim", "imbalance", "--muxes", "65"}, "--muxes: 65: must be 1 to 64"},
		{[]string{"sim", "imbalance", "--refresh", "10,0"}, "--refresh: 0: must be 1 to 1000"},
		{[]string{"sim", "imbalance", "--active", "99"}, "--active: 99: must be 100 to 10000000"},
		{[]string{"sim", "imbalance", "--life", "1h"}, "--life: 1h0m0s: must be 100ms to 10m"},
		{[]string{"sim", "imbalance", "--delay", "11s"}, "--delay: 11s: must be 0 to 10s"},
		{[]string{"sim", "completion", "--cpus", "0"}, "--cpus: 0: must be 1 to 256"},
		{[]string{"sim", "completion", "--busy", "1"}, "--busy: 1: must be 0.01 to 0.99"},
		{[]string{"sim", "completion", "--service", "1ms"}, "--service: 1ms: must be 10ms to 1m"},
		{[]string{"sim", "completion", "--during", "100ms"}, "--during: 100ms: must be ten times --service, up to 1h"},
	} {
		var out, errs bytes.Buffer
		if code := run(c.args, strings.NewReader(""), &out, &errs); code != exitUsage || !strings.Contains(errs.String(), c.want) {
			t.Errorf("shunt %s: exit code %d, says %q; want %d and %q", strings.Join(c.args, " "), code, errs.String(), exitUsage, c.want)
		}
	}
}

// A simulation prints its seed, repeats with the same result, and writes the printed rows to files.
func TestSimulations(t *testing.T) {
	for _, c := range []struct {
		args []string
		rows int
	}{
		{[]string{"broken", "--servers", "20", "--changes", "5", "--connections", "200"}, 7 * (5 + 15)},
		{[]string{"forged", "--servers", "10,50", "--tries", "500"}, 5 * 4 * 2},
		{[]string{"idle", "--idle", "70s", "--pushes", "20"}, 3 * (200 + 1)},
		{[]string{"imbalance", "--servers", "20", "--active", "200,400", "--life", "1s"}, 2 * (5 + 3*2)},
		{[]string{"completion", "--servers", "10", "--busy", "0.5", "--during", "5s"}, 3 * (5 + 3*2)},
	} {
		t.Run(c.args[0], func(t *testing.T) { testSimulation(t, c.args, c.rows) })
	}
}

func testSimulation(t *testing.T, args []string, rows int) {
	name, dir := args[0], filepath.Join(t.TempDir(), "new")
	args = append([]string{"sim"}, append(args, "--seed", "7", "--out", dir)...)
	simulate := func(more ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(append(args, more...), strings.NewReader(""), &out, &errs); code != exitOK {
			t.Fatalf("exit code %d: %s", code, errs.String())
		}
		return out.String()
	}
	screen := simulate()
	if !strings.HasPrefix(screen, "seed 7\n") || screen != simulate() {
		t.Errorf("printed:\n%s\nthen:\n%s", screen, simulate())
	}
	var found struct {
		Simulation string
		Seed       uint64
		Rows       []map[string]any
	}
	if err := json.Unmarshal([]byte(simulate("-o", "json")), &found); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join(dir, name+".csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	table, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if found.Simulation != name || found.Seed != 7 || len(found.Rows) != rows || len(table) != rows+1 {
		t.Errorf("%s of seed %d has %d rows, the file %d lines; want %d and one more", found.Simulation, found.Seed, len(found.Rows), len(table), rows)
	}
	for i, column := range table[0] {
		if _, ok := found.Rows[0][column]; !ok {
			t.Errorf("column %d of the file, %s, is no field of the rows", i, column)
		}
	}
	drawn, err := os.ReadFile(filepath.Join(dir, name+".png"))
	if err != nil || !bytes.HasPrefix(drawn, []byte("\x89PNG")) {
		t.Errorf("the plot: %v", err)
	}
}
