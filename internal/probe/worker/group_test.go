package worker

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/probe"
)

func TestGroupOf(t *testing.T) {
	const hybrid = "30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n31 30 0:27 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n"
	const inner = "31 30 0:27 /a/b /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	for _, c := range []struct{ member, mounts, want string }{
		{"9:name=systemd:/x\n0::/\n", hybrid, "/sys/fs/cgroup/unified"},
		{"0::/system.slice/shunt-mux.service\n", hybrid, "/sys/fs/cgroup/unified/system.slice/shunt-mux.service"},
		{"0::/a/b/c\n", inner, "/sys/fs/cgroup/c"},
		{"0::/a/other\n", inner, ""},
		{"1:pids:/x\n", hybrid, ""},
		{"0::/\n", "30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", ""},
	} {
		got, err := groupOf(c.member, c.mounts)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: got %q, %v; want %q", c.member, got, err, c.want)
		}
	}
}

// TestNobodyLeavesTheGroup checks that all processes that a program started end with it: those in
// its process group and, if there are cgroups, those in a session of their own too.
func TestNobodyLeavesTheGroup(t *testing.T) {
	g := openGroups()
	g.close()
	t.Run("processes", func(t *testing.T) { endsWithProgram(t, false, "") })
	if g != nil {
		t.Run("cgroup", func(t *testing.T) { endsWithProgram(t, true, "setsid ") })
	}
}

// endsWithProgram checks that a child ends with its program. prefix is the command that the program
// starts it with.
func endsWithProgram(t *testing.T, cgroup bool, prefix string) {
	dir := programs(t)
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(fifo, os.O_RDWR, 0) // read-write, so that no open waits for the other end
	if err != nil {
		t.Fatal(err)
	}
	program := script(t, dir, "leaves", "echo here >"+fifo+"\n"+prefix+"sleep 1000 >"+fifo+" &\nwait")
	a, got := newAsker(t, Options{Programs: dir, User: nobody})
	if !cgroup { // as on a machine without cgroups
		a.means.programs.groups.close()
		a.means.programs.groups = nil
	}
	if err := a.Add(1, probe.Of(external(program, time.Second), today4, 1)); err != nil {
		t.Fatal(err)
	}
	for answer := (probe.Answer{Verdict: probe.Void}); answer.Verdict == probe.Void; {
		a.Ask([]uint32{1})
		answer = <-got
	}
	again, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	f.Close()
	// EOF when no process has it open.
	if _, err := io.ReadAll(again); err != nil {
		t.Error(err)
	}
	a.Close()
	for cgroup { // killed processes need some time to exit
		a.means.programs.groups.sweep()
		if os.Remove(a.means.programs.groups.path); !exists(a.means.programs.groups.path) {
			return
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestStuckProgramsAreGivenUp checks that a program that does not end blocks no lane, and that with
// too many of them no program starts until they end.
func TestStuckProgramsAreGivenUp(t *testing.T) {
	dir := programs(t)
	a, got := newAsker(t, Options{Programs: dir, User: nobody})
	wake := make(chan struct{})
	d := a.means.programs
	d.giveUp = time.Millisecond
	d.waitEnd = func(pid int) error {
		<-wake
		return waitEnd(pid)
	}
	a.external.limit = 1
	if err := a.Add(1, probe.Of(external(script(t, dir, "stuck", "sleep 1000"), 50*time.Millisecond), today4, 1)); err != nil {
		t.Fatal(err)
	}
	for range maxStuck {
		a.Ask([]uint32{1})
		expectAnswer(t, <-got, probe.Bad, "program not done within 50 ms, and cannot be ended")
	}
	met := a.Met()
	if met.Stuck != maxStuck {
		t.Errorf("%d are stuck, want %d", met.Stuck, maxStuck)
	}
	a.Ask([]uint32{1})
	expectAnswer(t, <-got, probe.Void, fmt.Sprintf("not asked: %d programs cannot be ended", maxStuck))
	if now := a.Met().Starved; now != met.Starved+1 {
		t.Errorf("%d starved, want %d", now, met.Starved+1)
	}
	close(wake)
	for end := time.Now().Add(time.Minute); d.stuck.Load() > 0; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d are still stuck", d.stuck.Load())
		}
	}
	a.Ask([]uint32{1})
	if answer := <-got; strings.HasPrefix(answer.Words, "not asked: 32") {
		t.Errorf("got %q when all had ended", answer.Words)
	}
}

// TestProgramsRunWhereNobodyIsBornInAGroup checks that probes are made even if the cgroup refuses
// processes. Here it is a plain directory.
func TestProgramsRunWhereNobodyIsBornInAGroup(t *testing.T) {
	dir := programs(t)
	a, got := newAsker(t, Options{Programs: dir, User: nobody})
	a.means.programs.groups.close()
	a.means.programs.groups = &groups{path: t.TempDir()}
	if err := a.Add(1, probe.Of(external(script(t, dir, "good", "echo fine"), 30*time.Second), today4, 1)); err != nil {
		t.Fatal(err)
	}
	a.Ask([]uint32{1})
	expectAnswer(t, <-got, probe.Good, "fine")
}
