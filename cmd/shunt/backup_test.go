package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// secretFile writes a file with a secret and a newline.
func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// commandLine runs a command line that needs no manager.
func commandLine(args ...string) (string, int) {
	var out bytes.Buffer
	code := run(args, nil, &out, &out)
	return out.String(), code
}

// TestRegionComesBack follows docs/ops/backup.md: a member that need not lead saves the cluster,
// the cluster is lost, one manager is restored from the backup and the others join it.
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

// killedRestore kills a restore into data midway and returns the mark that it left, or none if the
// restore was faster.
func killedRestore(t *testing.T, file string) (left []string, data string) {
	t.Helper()
	parent := t.TempDir()
	data = filepath.Join(parent, "data")
	restore := exec.Command(os.Args[0])
	restore.Env = append(os.Environ(), commandVariable+"="+strings.Join([]string{"restore", file, "--data", data, "--name", "m1"}, "\n"))
	restore.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := restore.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- restore.Wait() }()
	mark := filepath.Join(parent, ".data.restore-*", "restoring")
	for {
		if found, _ := filepath.Glob(mark); len(found) > 0 {
			break
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("restore: %v", err)
			}
			return nil, data
		case <-time.After(time.Millisecond):
		}
	}
	restore.Process.Kill()
	if err := <-ended; err == nil {
		return nil, data
	}
	left, _ = filepath.Glob(mark)
	return left, data
}

// TestRestoreIsKilled checks that a restore ended by kill -9 leaves no data directory that a
// manager starts with.
func TestRestoreIsKilled(t *testing.T) {
	p := newManagerProcess(t)
	p.start()
	p.must(testNetwork, "apply", "-f", "-")
	file := filepath.Join(t.TempDir(), "b")
	p.must("", "backup", "-f", file, "--plain")
	p.end(syscall.SIGTERM)
	var data string
	var left []string
	for tries := 1; ; tries++ {
		if left, data = killedRestore(t, file); left != nil {
			break
		}
		if tries == 20 {
			t.Fatalf("%d restores ended before they were killed", tries)
		}
	}
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

// TestBackupReplacesFilesOnly checks that a target that is not a regular file is refused before any
// request and stays unchanged.
func TestBackupReplacesFilesOnly(t *testing.T) {
	dir := t.TempDir()
	pipe, old, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "old"), filepath.Join(dir, "link")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.WriteFile(old, nil, 0o600), os.Symlink("old", link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, pipe, "-", os.DevNull, filepath.Join(dir, "none", "b"), filepath.Join(old, "b")} {
		out, code := commandLine("backup", "-f", path, "--plain", "--config", filepath.Join(dir, "no config"))
		if code != exitUsage || !strings.Contains(out, "-f: "+path+": must be ") {
			t.Errorf("%s: exit code %d: %s", path, code, out)
		}
	}
	p := newManagerProcess(t)
	p.start()
	p.must("", "backup", "-f", link, "--plain")
	p.end(syscall.SIGTERM)
	if out, code := commandLine("verify", old); code != exitOK {
		t.Errorf("where the link leads: exit code %d: %s", code, out)
	}
	if to, err := os.Readlink(link); err != nil || to != "old" {
		t.Errorf("the link leads to %q: %v", to, err)
	}
}

// TestNoTokenIsNoManager checks that a missing token file is not reported as a fault of the
// manager.
func TestNoTokenIsNoManager(t *testing.T) {
	p := newManagerProcess(t)
	p.start()
	defer p.end(syscall.SIGTERM)
	missing := filepath.Join(t.TempDir(), "none")
	t.Setenv(tokenVariable, missing)
	out, code := commandLine("get", "services", "--config", filepath.Join(p.data, "admin.yaml"))
	if want := "shunt get: read token: open " + missing + ": no such file or directory\n"; code != exitFailed || out != want {
		t.Errorf("exit code %d: %q, want %q", code, out, want)
	}
}
