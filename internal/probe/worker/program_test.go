package worker

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// nobody is the user that tests run programs as: a number without a name.
var nobody = User{UID: 64123, GID: 64123}

// TestMain calls Child first, because programs are started by this executable.
func TestMain(m *testing.M) {
	Child()
	os.Exit(m.Run())
}

// programs makes a directory that all users can read.
func programs(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "programs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// script writes a program.
func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func external(program string, timeout time.Duration, arguments ...string) lb.Check {
	list, err := lb.NewArguments(arguments)
	if err != nil {
		panic(err)
	}
	c := lb.Check{Kind: lb.CheckExternal, Program: program, Arguments: list, Timeout: timeout, Interval: timeout}
	c.SetDefaults()
	return c
}

// run makes one probe with a program.
func run(t *testing.T, dir string, c lb.Check) probe.Answer {
	t.Helper()
	a, got := newAsker(t, Options{Programs: dir, User: nobody})
	if err := a.Add(3, probe.Of(c, today4, 8080)); err != nil {
		t.Fatal(err)
	}
	a.Ask([]uint32{3})
	return <-got
}

func TestPrograms(t *testing.T) {
	dir := programs(t)
	flags := `grep -E '^(NoNewPrivs|Groups|CapEff):' /proc/self/status | tr -d '\t\n'`
	cases := []struct {
		name, text string
		verdict    probe.Verdict
		words      string
	}{
		{"good", "exit 0", probe.Good, "exit 0"},
		{"good, with words", "echo fine; echo more", probe.Good, "fine"},
		{"bad", "exit 3", probe.Bad, "exit 3"},
		{"bad, with words", "echo no database >&2; exit 3", probe.Bad, "no database"},
		{"words of others", `printf 'a\033[31m\377b\n'; exit 1`, probe.Bad, "a?[31m?b"},
		{"long words", "printf %0300d 0; exit 1", probe.Bad, strings.Repeat("0", 197) + "…"},
		{"signal", "kill -TERM $$", probe.Bad, "program ended by SIGTERM"},
		{"environment", `env | grep -v -E '^(PWD|OLDPWD|SHLVL|_)=' | sort | tr '\n' ' '`, probe.Good,
			"PATH=" + programPath + " SHUNT_ADDRESS=192.0.2.1 SHUNT_PORT=8080 SHUNT_TIMEOUT=300"},
		{"arguments", `echo $# "$1" "$2"`, probe.Good, "2 a b c"},
		{"directory", "pwd", probe.Good, "/"},
		{"input", "cat; readlink /proc/self/fd/0", probe.Good, "/dev/null"},
		{"user", "echo $(id -u) $(id -g) $(id -G)", probe.Good, "64123 64123 64123"},
		{"privileges", flags, probe.Good, "Groups: CapEff:0000000000000000NoNewPrivs:1"},
		{"group", `read _ _ _ _ group rest </proc/$$/stat; [ $group = $$ ] && echo own`, probe.Good, "own"},
		{"limits", `echo $(ulimit -t) $(ulimit -v) $(ulimit -d) $(ulimit -n) $(ulimit -f) $(ulimit -c); exit 1`, probe.Bad, "300 8388608 1048576 64 0 0"},
		{"processes", `grep 'Max processes' /proc/self/limits | tr -s ' '`, probe.Good, "Max processes 256 256 processes"},
		{"descriptors", `echo /proc/self/fd/*`, probe.Good, "/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/10 /proc/self/fd/2 /proc/self/fd/3"},
		{"files", `echo x >/dev/shm/shunt-check-$$ || exit 7`, probe.Bad, "program ended by SIGXFSZ"},
		{"flood", `while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done`, probe.Bad, "program wrote more than 65536 bytes"},
		{"much", `head -c 65536 /dev/zero | tr '\0' y; exit 0`, probe.Good, strings.Repeat("y", 197) + "…"},
		{"output of those left behind", `echo first; (trap '' HUP; exec sleep 1000) & exit 0`, probe.Good, "first"},
		{"who left the group", `echo first; setsid sleep 3 & exit 0`, probe.Good, "first"},
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			program := script(t, dir, fmt.Sprint("check", i), c.text)
			expectAnswer(t, run(t, dir, external(program, long, "a", "b c")), c.verdict, c.words)
		})
	}
	t.Run("no program at all", func(t *testing.T) {
		path := script(t, dir, "broken", "")
		if err := os.WriteFile(path, []byte("\x7fELF and nothing"), 0o755); err != nil {
			t.Fatal(err)
		}
		expectAnswer(t, run(t, dir, external(path, long)), probe.Void, "not asked: start program: exec format error")
	})
}

// TestTimeoutEndsTheWholeGroup checks that the children of a program that timed out end with it.
func TestTimeoutEndsTheWholeGroup(t *testing.T) {
	dir := programs(t)
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	program := script(t, dir, "late", "sleep 1000 >"+fifo+" &\nsleep 1000")
	answer := run(t, dir, external(program, 300*time.Millisecond))
	for answer.Verdict == probe.Void { // this machine is too busy to start it in time
		answer = run(t, dir, external(program, 300*time.Millisecond))
	}
	expectAnswer(t, answer, probe.Bad, "program not done within 300 ms")
	// EOF when no process has the file open any more, whether or not one ever had.
	f, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.ReadAll(f); err != nil {
		t.Error(err)
	}
}

// TestCloseEndsPrograms checks that Close ends programs without waiting for them to finish.
func TestCloseEndsPrograms(t *testing.T) {
	dir := programs(t)
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	a, got := newAsker(t, Options{Programs: dir, User: nobody})
	if err := a.Add(3, probe.Of(external(script(t, dir, "late", "sleep 1000 >"+fifo), long), today4, 1)); err != nil {
		t.Fatal(err)
	}
	a.Ask([]uint32{3})
	opened := make(chan *os.File, 1)
	go func() {
		f, _ := os.Open(fifo) // once it runs
		opened <- f
	}()
	var f *os.File
	select {
	case f = <-opened:
	case answer := <-got:
		t.Fatalf("got %q from a program that runs for ever", answer.Words)
	}
	defer f.Close()
	a.Close()
	if _, err := io.ReadAll(f); err != nil {
		t.Error(err)
	}
	if len(got) != 0 {
		t.Error("a probe that was broken off is answered")
	}
}

// TestProgramsAreRootsAlone checks that programs that others than root can change are refused, when
// the check is added and before each start.
func TestProgramsAreRootsAlone(t *testing.T) {
	outside, dir := programs(t), programs(t)
	at := func(path string, change func(path string) error) string {
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	own := func(name string) string { return script(t, dir, name, "exit 0") }
	shared := filepath.Join(dir, "shared")
	if err := os.Mkdir(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	inShared := script(t, shared, "x", "exit 0")
	at(shared, func(p string) error { return os.Chmod(p, 0o777) })
	foreign := script(t, outside, "x", "exit 0")
	sibling := dir + "-sibling"
	if err := os.Mkdir(sibling, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sibling) })
	inSibling := script(t, sibling, "x", "exit 0")
	cases := []struct{ name, program, want string }{
		{"fine", own("fine"), ""},
		{"link within", at(dir+"/link", func(p string) error { return os.Symlink(dir+"/fine", p) }), ""},
		{"missing", dir + "/missing", "program: lstat " + dir + "/missing: no such file or directory"},
		{"relative", "fine", `program: "fine": must be an absolute path`},
		{"outside", foreign, fmt.Sprintf(`program: %q is %s: must be below %s`, foreign, foreign, dir)},
		{"sibling", inSibling, fmt.Sprintf(`program: %q is %s: must be below %s`, inSibling, inSibling, dir)},
		{"dots", dir + "/../" + filepath.Base(outside) + "/x", fmt.Sprintf(`program: %q is %s: must be below %s`, dir+"/../"+filepath.Base(outside)+"/x", foreign, dir)},
		{"link out", at(dir+"/escape", func(p string) error { return os.Symlink(foreign, p) }), fmt.Sprintf(`program: %q is %s: must be below %s`, dir+"/escape", foreign, dir)},
		{"the directory", dir, fmt.Sprintf(`program: %q is %s: must be below %s`, dir, dir, dir)},
		{"a directory", shared, fmt.Sprintf(`program: %q: must be a file that can be executed`, shared)},
		{"not executable", at(own("plain"), func(p string) error { return os.Chmod(p, 0o644) }), fmt.Sprintf(`program: %q: must be a file that can be executed`, dir+"/plain")},
		{"group writes", at(own("group"), func(p string) error { return os.Chmod(p, 0o775) }), "program: " + dir + "/group has mode 0775: only root must be able to write there"},
		{"other owner", at(own("owned"), func(p string) error { return os.Chown(p, 64123, 0) }), "program: " + dir + "/owned belongs to user 64123: must belong to root"},
		{"directory of everybody", inShared, "program: " + shared + " has mode 0777: only root must be able to write there"},
	}
	a, got := newAsker(t, Options{Programs: dir, User: nobody})
	for i, c := range cases {
		err := a.Add(uint32(i), probe.Of(external(c.program, long), today4, 1))
		if said := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && said != c.want {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
	at(dir+"/fine", func(p string) error { return os.Chmod(p, 0o757) })
	a.Ask([]uint32{0})
	expectAnswer(t, <-got, probe.Void, clean("not asked: program: "+dir+"/fine has mode 0757: only root must be able to write there"))
}

func TestExternalChecksAreOptIn(t *testing.T) {
	a, _ := newAsker(t, Options{})
	const want = `program: "/bin/true": external checks are not allowed: --check-programs is not given`
	if err := a.Add(1, probe.Of(external("/bin/true", long), today4, 1)); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	dir := programs(t)
	file := script(t, dir, "file", "")
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o770); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		programs string
		user     User
		want     string
	}{
		{dir, User{}, "user 0, group 0: external checks must not run as root"},
		{dir, User{UID: 1}, "user 1, group 0: external checks must not run as root"},
		{"checks", nobody, `programs: "checks": must be an absolute path`},
		{dir + "/none", nobody, "programs: lstat " + dir + "/none: no such file or directory"},
		{file, nobody, fmt.Sprintf("programs: %q: must be a directory", file)},
		{open, nobody, "programs: " + open + " has mode 0770: only root must be able to write there"},
	} {
		if _, err := New(Options{Programs: c.programs, User: c.user}); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

func TestLookupUser(t *testing.T) {
	if u, err := LookupUser("nobody"); err != nil || u.UID == 0 || u.GID == 0 {
		t.Errorf("nobody is %+v, %v", u, err)
	}
	for name, want := range map[string]string{
		"root":         "user 0, group 0: external checks must not run as root",
		"no-such-user": `find user "no-such-user": user: unknown user no-such-user`,
	} {
		if _, err := LookupUser(name); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
}
