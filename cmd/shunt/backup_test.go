package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// secretFile is a file with a secret, and a newline.
func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// commandLine runs a command line that speaks with no manager.
func commandLine(args ...string) (string, int) {
	var out bytes.Buffer
	code := run(args, nil, &out, &out)
	return out.String(), code
}

// TestRegionComesBack walks the way of docs/ops/backup.md: a cluster is saved by a member that need not lead, everything of it is
// lost, one manager is made of the backup and the others join it.
func TestRegionComesBack(t *testing.T) {
	all := []*managerProcess{newPeer(t, "m1"), newPeer(t, "m2"), newPeer(t, "m3")}
	all[0].start()
	all[1].join(all[0])
	all[2].join(all[0])
	all[0].must(testNetwork, "apply", "-f", "-")
	for i := range 3 {
		all[i].must(testService(i), "apply", "-f", "-")
	}
	dir := t.TempDir()
	file, word := filepath.Join(dir, "b"), secretFile(t, "correct horse battery")
	for _, p := range all {
		p.must("", "backup", "-f", file, "--passphrase-file", word)
	}
	for _, p := range all {
		p.end(syscall.SIGKILL)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v: must be for its owner alone", st.Mode(), err)
	}
	out, code := commandLine("verify", file, "--passphrase-file", word)
	if code != exitOK || !strings.Contains(out, "  Service    3\n") {
		t.Fatalf("verify: exit code %d: %s", code, out)
	}
	out, code = commandLine("verify", file, "--passphrase-file", secretFile(t, "wrong horse battery"))
	if code != exitFailed || !strings.Contains(out, "is not the one") || strings.Contains(out, "horse") {
		t.Errorf("wrong passphrase: exit code %d: %s", code, out)
	}
	out, code = commandLine("restore", file, "--data", all[0].data, "--name", "m1", "--passphrase-file", word)
	if code != exitFailed || !strings.Contains(out, "is not empty") {
		t.Errorf("over the old directory: exit code %d: %s", code, out)
	}
	for _, p := range all {
		p.data = filepath.Join(t.TempDir(), "data")
	}
	out, code = commandLine("restore", file, "--data", all[0].data, "--name", "m1", "--passphrase-file", word)
	if code != exitOK {
		t.Fatalf("restore: exit code %d: %s", code, out)
	}
	all[0].start()
	all[1].join(all[0])
	all[2].join(all[0])
	all[2].must(testService(3), "apply", "-f", "-")
	for _, p := range all {
		out := p.must("", "get", "services")
		for i := range 4 {
			if !strings.Contains(out, fmt.Sprintf("s%d ", i)) {
				t.Errorf("%s has no s%d: %s", p.name, i, out)
			}
		}
	}
	if out := all[1].must("", "audit"); !strings.Contains(out, "Restore") {
		t.Errorf("audit log: %s", out)
	}
}

// TestRestoreIsKilled: what kill -9 leaves of a restore is no data directory, and nothing starts with it.
func TestRestoreIsKilled(t *testing.T) {
	p := newManagerProcess(t)
	p.start()
	p.must(testNetwork, "apply", "-f", "-")
	file := filepath.Join(t.TempDir(), "b")
	p.must("", "backup", "-f", file, "--plain")
	p.end(syscall.SIGTERM)
	parent := t.TempDir()
	data := filepath.Join(parent, "data")
	restore := exec.Command(os.Args[0])
	restore.Env = append(os.Environ(), commandVariable+"="+strings.Join([]string{"restore", file, "--data", data, "--name", "m1"}, "\n"))
	restore.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := restore.Start(); err != nil {
		t.Fatal(err)
	}
	var left []string
	for len(left) == 0 {
		if _, err := os.Stat(data); err == nil {
			t.Fatal("the directory is there before its parts")
		}
		left, _ = filepath.Glob(filepath.Join(parent, ".data.restore-*", "restoring"))
		<-time.After(time.Millisecond)
	}
	restore.Process.Kill()
	restore.Wait()
	if _, err := os.Stat(data); err == nil {
		t.Error("the directory is there")
	}
	out, code := commandLine("manager", "--data", filepath.Dir(left[0]), "--listen", p.addr, "--name", "m1")
	if code != exitFailed || !strings.Contains(out, "a restore of it broke off") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if out, code := commandLine("restore", file, "--data", data, "--name", "m1"); code != exitOK {
		t.Errorf("once more: exit code %d: %s", code, out)
	}
}
