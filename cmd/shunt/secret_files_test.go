package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSecretFilesWarn checks one warning for each mode of a password file that all users may read,
// and that only regular files are read.
func TestSecretFilesWarn(t *testing.T) {
	var out bytes.Buffer
	s := &secretFiles{log: slog.New(slog.NewTextHandler(&out, nil))}
	name := filepath.Join(t.TempDir(), "md5")
	if err := os.WriteFile(name, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode os.FileMode
		want int
	}{{0o600, 0}, {0o640, 0}, {0o644, 1}, {0o644, 1}, {0o600, 1}, {0o644, 2}} {
		if err := os.Chmod(name, c.mode); err != nil {
			t.Fatal(err)
		}
		if content, err := s.read(name); err != nil || string(content) != "secret\n" {
			t.Fatalf("read %q, %v", content, err)
		}
		if got := strings.Count(out.String(), "chmod 0600 "+name); got != c.want {
			t.Errorf("mode %#o: %d warnings, expected %d", c.mode, got, c.want)
		}
	}
	if strings.Contains(out.String(), "secret") && !strings.Contains(name, "secret") {
		t.Error("the log has the password")
	}
	if _, err := s.read(t.TempDir()); err == nil {
		t.Error("a directory was read")
	}
}
