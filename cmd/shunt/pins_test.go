package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStopWithoutPins checks that --stop of both daemons succeeds if nothing is pinned, and reports
// that.
func TestStopWithoutPins(t *testing.T) {
	for _, role := range []string{"host", "mux"} {
		dir := t.TempDir()
		pins := filepath.Join(dir, "pins")
		var out, errs bytes.Buffer
		if code := run([]string{role, "--stop", "--bpffs", pins, "--run", dir}, nil, &out, &errs); code != 0 {
			t.Fatalf("%s --stop: exit %d, %s", role, code, errs.String())
		}
		if !strings.Contains(errs.String(), "nothing to detach: no pins in "+pins) {
			t.Errorf("%s --stop: %q", role, errs.String())
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "link"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	if noteNoPins(&said, dir); said.Len() != 0 {
		t.Errorf("with pins: %q", said.String())
	}
	if noteLeft(&said, dir); !strings.Contains(said.String(), "left in "+dir) || !strings.Contains(said.String(), ": link;") {
		t.Errorf("with an object that stays: %q", said.String())
	}
	said.Reset()
	if noteLeft(&said, t.TempDir()); said.Len() != 0 {
		t.Errorf("with nothing that stays: %q", said.String())
	}
}
