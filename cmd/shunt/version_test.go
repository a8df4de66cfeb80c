package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestVersionFlag checks that --version prints this binary's version and calls no manager: none is
// configured.
func TestVersionFlag(t *testing.T) {
	var out, errs bytes.Buffer
	args := []string{"--version", "--config", "/does/not/exist"}
	if code := run(args, strings.NewReader(""), &out, &errs); code != exitOK || errs.Len() > 0 {
		t.Fatalf("shunt --version: exit %d, %s", code, errs.String())
	}
	if want := "shunt " + version; !strings.HasPrefix(out.String(), want) || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("shunt --version: %q, want one line that begins with %q", out.String(), want)
	}
}
