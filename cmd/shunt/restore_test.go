package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shuntlb/shunt/internal/store/etcd/etcdtest"
)

// saved returns an unencrypted backup of a single manager with the service s1. The manager has
// ended.
func saved(t *testing.T) string {
	t.Helper()
	p := newManagerProcess(t)
	p.start()
	p.must(testNetwork+"---"+testService(1), "apply", "-f", "-")
	file := filepath.Join(t.TempDir(), "b")
	p.must("", "backup", "-f", file, "--plain")
	p.end(syscall.SIGKILL)
	return file
}

// TestRestoreOfFive restores one backup into a cluster of five, which survives the loss of two and
// is itself backed up and restored.
func TestRestoreOfFive(t *testing.T) {
	file := saved(t)
	var all []*managerProcess
	for _, name := range []string{"m1", "m2", "m3", "m4", "m5"} {
		all = append(all, newPeer(t, name))
	}
	if out, code := commandLine("restore", file, "--data", all[0].data, "--name", "m1"); code != exitOK {
		t.Fatalf("restore: exit code %d: %s", code, out)
	}
	all[0].start()
	for i, p := range all[1:] {
		p.join(all[i])
	}
	if out := all[4].must("", "member", "list"); strings.Count(out, " up ") != 4 || strings.Count(out, " leads ") != 1 {
		t.Errorf("members: %s", out)
	}
	all[0].end(syscall.SIGKILL)
	all[1].end(syscall.SIGKILL)
	all[4].must(testService(2), "apply", "-f", "-")
	for _, p := range all[2:] {
		if out := p.must("", "get", "services"); !strings.Contains(out, "s1 ") || !strings.Contains(out, "s2 ") {
			t.Errorf("%s has: %s", p.name, out)
		}
	}
	// Five members, two of them lost, hold one state.
	again := filepath.Join(t.TempDir(), "b")
	all[3].must("", "backup", "-f", again, "--plain")
	for _, p := range all[2:] {
		p.end(syscall.SIGKILL)
	}
	p := newPeer(t, "m6")
	if out, code := commandLine("restore", again, "--data", p.data, "--name", "m6"); code != exitOK {
		t.Fatalf("restore: exit code %d: %s", code, out)
	}
	p.start()
	if out := p.must("", "get", "services"); !strings.Contains(out, "s1 ") || !strings.Contains(out, "s2 ") {
		t.Errorf("%s has: %s", p.name, out)
	}
	if out := p.must("", "member", "list"); strings.Count(out, "\n") != 2 || !strings.Contains(out, "m6 ") {
		t.Errorf("members: %s", out)
	}
}

// TestRestoreOutside restores into an external etcd, where no key may be below the prefix. Managers
// run with it, and other keys there stay.
func TestRestoreOutside(t *testing.T) {
	file, url := saved(t), etcdtest.Serve(t)
	other := newManagerProcess(t)
	other.args = []string{"--etcd-endpoints", url, "--etcd-prefix", "/site2"}
	other.start()
	other.must(testNetwork+"---"+testService(7), "apply", "-f", "-")

	m1, m2 := newManagerProcess(t), newManagerProcess(t)
	m2.name = "m2"
	outside := []string{"--etcd-endpoints", url, "--etcd-prefix", "/site1"}
	restore := append([]string{"restore", file, "--name", "m1", "--data"}, append([]string{m1.data}, outside...)...)
	out, code := commandLine(restore...)
	if code != exitOK || !strings.Contains(out, "with the same --etcd- flags") {
		t.Fatalf("restore: exit code %d: %s", code, out)
	}
	restore[5] = filepath.Join(t.TempDir(), "data")
	out, code = commandLine(restore...)
	if _, err := os.Stat(restore[5]); code != exitFailed || !strings.Contains(out, `--etcd-prefix: "/site1": must be`) || !os.IsNotExist(err) {
		t.Errorf("over a state that is there: exit code %d, %v: %s", code, err, out)
	}
	m1.args, m2.args = outside, outside
	m1.start()
	m2.join(m1)
	m2.must(testService(2), "apply", "-f", "-")
	for _, p := range []*managerProcess{m1, m2} {
		if out := p.must("", "get", "services"); !strings.Contains(out, "s1 ") || !strings.Contains(out, "s2 ") || strings.Contains(out, "s7 ") {
			t.Errorf("%s has: %s", p.name, out)
		}
	}
	if out := m1.must("", "audit"); !strings.Contains(out, "Restore") {
		t.Errorf("audit log: %s", out)
	}
	if out := other.must("", "get", "services"); !strings.Contains(out, "s7 ") || strings.Contains(out, "s1 ") {
		t.Errorf("the other site has: %s", out)
	}
}

// TestRestoreOutsideFails checks that a restore into an unreachable etcd leaves no data directory.
func TestRestoreOutsideFails(t *testing.T) {
	t.Parallel() // waits for a timeout
	data := filepath.Join(t.TempDir(), "data")
	out, code := commandLine("restore", saved(t), "--data", data, "--name", "m1", "--etcd-endpoints", "http://127.0.0.1:1")
	if _, err := os.Stat(data); code != exitFailed || !strings.Contains(out, "http://127.0.0.1:1") || !os.IsNotExist(err) {
		t.Errorf("exit code %d, %v: %s", code, err, out)
	}
}
