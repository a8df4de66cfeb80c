package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/manager"
)

// commandVariable makes the test binary run as shunt with these arguments, separated by newlines.
const commandVariable = "SHUNT_TEST_COMMAND"

// schemaVariable makes the test binary a build that supports a newer store schema than this one.
const schemaVariable = "SHUNT_TEST_SCHEMA"

func init() {
	if args := os.Getenv(commandVariable); args != "" {
		if n, err := strconv.ParseInt(os.Getenv(schemaVariable), 10, 64); err == nil {
			version, storeSchema = fmt.Sprintf("of schema %d", n), n
		}
		os.Exit(run(strings.Split(args, "\n"), os.Stdin, os.Stdout, os.Stderr))
	}
}

// managerProcess is `shunt manager` as a separate process.
type managerProcess struct {
	t          *testing.T
	name       string
	data, addr string
	// args are additional arguments.
	args []string
	// schema is the newest schema that its build supports. Empty means this build's.
	schema string
	cmd    *exec.Cmd
	stderr *bufio.Reader
}

func newManagerProcess(t *testing.T) *managerProcess {
	t.Helper()
	// Use a loopback address of this process alone, because outgoing connections leave from
	// 127.0.0.1 and cannot take its ports.
	l, err := net.Listen("tcp", fmt.Sprintf("127.78.%d.%d:0", os.Getpid()>>8&255, os.Getpid()&255))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &managerProcess{t: t, name: "m1", data: filepath.Join(t.TempDir(), "data"), addr: l.Addr().String()}
}

// start returns when the manager is up, with the log line that reports it.
func (p *managerProcess) start() string {
	p.t.Helper()
	p.launch()
	var said strings.Builder
	for {
		line, err := p.stderr.ReadString('\n')
		said.WriteString(line)
		if strings.Contains(line, "manager is up") {
			return line
		}
		if err != nil {
			p.t.Fatalf("manager ended: %v: %s", p.cmd.Wait(), said.String())
		}
	}
}

func (p *managerProcess) launch() {
	p.t.Helper()
	args := append([]string{"manager", "--data", p.data, "--listen", p.addr, "--name", p.name}, p.args...)
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), commandVariable+"="+strings.Join(args, "\n"), schemaVariable+"="+p.schema)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	pipe, err := p.cmd.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { p.cmd.Process.Kill() })
	p.stderr = bufio.NewReader(pipe)
}

// end sends the signal and returns the rest of the manager's log, and its exit code.
func (p *managerProcess) end(sig os.Signal) (string, int) {
	p.cmd.Process.Signal(sig)
	var rest bytes.Buffer
	rest.ReadFrom(p.stderr)
	p.cmd.Wait()
	return rest.String(), p.cmd.ProcessState.ExitCode()
}

// shunt runs a command line against the manager.
func (p *managerProcess) shunt(stdin string, args ...string) (string, int) {
	var out, err bytes.Buffer
	code := run(append([]string{"--config", filepath.Join(p.data, "admin.yaml")}, args...), strings.NewReader(stdin), &out, &err)
	return out.String() + err.String(), code
}

// transient are texts of errors that a busy machine may return to any call while managers stop and
// start. The caller retries.
var transient = []string{manager.NoLeader, "may have been made or not", "broke before it answered", "cannot be reached", "can be reached", "no answer within"}

// patiently runs a command line that may be repeated, until its error is not transient. After a
// timeout it returns the last one.
func patiently(command func() (string, int)) (out string, code int) {
	for deadline := time.Now().Add(time.Minute); ; {
		out, code = command()
		if code == exitOK || time.Now().After(deadline) || !slices.ContainsFunc(transient, func(words string) bool { return strings.Contains(out, words) }) {
			return out, code
		}
		<-time.After(100 * time.Millisecond)
	}
}

const testNetwork = `
kind: Network
name: main
vips: [203.0.0.0/8]
underlay: [10.0.0.0/8]
---
kind: Node
name: host1
role: host
address: 10.20.1.1
`

func testService(i int) string {
	return fmt.Sprintf(`
kind: Service
name: s%d
vip: 203.0.%d.%d
endpoints:
- protocol: tcp
  port: 80
  backends:
  - {dip: 10.20.1.11, port: 8080, host: 10.20.1.1}
`, i, i/250, 1+i%250)
}

// epochOf returns the epoch from the log line that reports that a manager is up. A disk that is
// slow for long may cost further epochs.
func epochOf(t *testing.T, line string) int {
	t.Helper()
	_, rest, _ := strings.Cut(line, "epoch=")
	n, err := strconv.Atoi(strings.Fields(rest + " ?")[0])
	if err != nil {
		t.Fatalf("no epoch in %q", line)
	}
	return n
}

// TestManagerLosesNothing kills the manager during writes, repeatedly, and checks that every
// acknowledged write is present.
func TestManagerLosesNothing(t *testing.T) {
	p := newManagerProcess(t)
	epoch := epochOf(t, p.start())
	if out, code := p.shunt(testNetwork, "apply", "-f", "-"); code != exitOK {
		t.Fatal(out)
	}
	acknowledged := 0
	for round := 1; round <= 3; round++ {
		enough, stopped := make(chan struct{}), make(chan int)
		go func(n int) {
			for i := n; ; i++ {
				if _, code := p.shunt(testService(i), "apply", "-f", "-"); code != exitOK {
					stopped <- i
					return
				}
				if i == n+10 {
					close(enough)
				}
			}
		}(acknowledged)
		<-enough
		p.end(syscall.SIGKILL)
		acknowledged = <-stopped
		if next := epochOf(t, p.start()); next <= epoch {
			t.Errorf("after kill %d: epoch %d, before it was %d", round, next, epoch)
		} else {
			epoch = next
		}
		out, code := p.shunt("", "get", "services", "-o", "json")
		if code != exitOK {
			t.Fatal(out)
		}
		for i := range acknowledged {
			if !strings.Contains(out, fmt.Sprintf("%q", fmt.Sprintf("s%d", i))) {
				t.Errorf("after kill %d: s%d of %d was acknowledged and is lost", round, i, acknowledged)
			}
		}
	}
	if rest, code := p.end(syscall.SIGTERM); code != exitOK || !strings.Contains(rest, "manager stops") {
		t.Errorf("after SIGTERM: exit code %d: %s", code, rest)
	}
}

func TestManagerSaysWhyItCannotStart(t *testing.T) {
	p := newManagerProcess(t)
	p.start()
	for name, c := range map[string]struct {
		args []string
		want string
		code int
	}{
		"port in use":    {[]string{"--data", t.TempDir(), "--listen", p.addr}, "another process listens there", exitFailed},
		"data in use":    {[]string{"--data", p.data, "--listen", "127.0.0.1:0"}, "data directory is used by another process", exitFailed},
		"bad listen":     {[]string{"--data", t.TempDir(), "--listen", "8443"}, `--listen: "8443": must be`, exitUsage},
		"bad advertise":  {[]string{"--data", t.TempDir(), "--advertise", ":8443"}, "--advertise", exitUsage},
		"unknown flag":   {[]string{"--nope"}, "nope", exitUsage},
		"bad peer":       {[]string{"--name", "m1", "--peer", "m1:8444"}, `--peer: "m1:8444": must be`, exitUsage},
		"any peer":       {[]string{"--name", "m1", "--peer", "0.0.0.0:8444"}, "--peer", exitUsage},
		"peer's name":    {[]string{"--name", "m1.example.org", "--peer", "127.0.0.1:8444"}, `--name: "m1.example.org"`, exitUsage},
		"two stores":     {[]string{"--name", "m1", "--peer", "127.0.0.1:8444", "--etcd-endpoints", "https://127.0.0.1:2379"}, "--peer", exitUsage},
		"alone outside":  {[]string{"--force-new-cluster", "--etcd-endpoints", "https://127.0.0.1:2379"}, "--force-new-cluster", exitUsage},
		"no endpoints":   {[]string{"--etcd-prefix", "/a"}, "--etcd-prefix: --etcd-endpoints is missing", exitUsage},
		"bad endpoint":   {[]string{"--etcd-endpoints", "https://a:1,b:2"}, `--etcd-endpoints: "b:2"`, exitUsage},
		"no key":         {[]string{"--etcd-endpoints", "https://a:1", "--etcd-cert", "f"}, "--etcd-cert: --etcd-key is missing", exitUsage},
		"no certificate": {[]string{"--etcd-endpoints", "https://a:1", "--etcd-key", "f"}, "--etcd-key: --etcd-cert is missing", exitUsage},
		"no secret":      {[]string{"--etcd-endpoints", "http://a:1", "--etcd-login-file", "f"}, "--etcd-login-file: no endpoint is https", exitUsage},
		"plain CA":       {[]string{"--etcd-endpoints", "http://a:1", "--etcd-ca", "f"}, "--etcd-ca: no endpoint is https", exitUsage},
		"no token":       {[]string{"--name", "m1", "--join", "127.0.0.1:1", "--peer", "127.0.0.1:8444"}, "--join: --token-file is missing", exitUsage},
		"no join":        {[]string{"--token-file", "f"}, "--token-file: --join is missing", exitUsage},
		"no peer":        {[]string{"--join", "127.0.0.1:1", "--token-file", "f"}, "--join: --peer is missing", exitUsage},
		"bad join":       {[]string{"--join", "m1", "--token-file", "f"}, `--join: "m1": must be HOST:PORT`, exitUsage},
		"join alone":     {[]string{"--name", "m1", "--join", "a:1", "--token-file", "f", "--peer", "127.0.0.1:8444", "--force-new-cluster"}, "--force-new-cluster", exitUsage},
		"token's file":   {[]string{"--data", t.TempDir(), "--listen", "127.0.0.1:0", "--name", "m1", "--join", "127.0.0.1:1", "--token-file", "/none", "--peer", "127.0.0.1:1"}, "--token-file: open /none", exitFailed},
		"bad prefix":     {[]string{"--etcd-endpoints", "https://a:1", "--etcd-prefix", "/a/"}, `--etcd-prefix: "/a/"`, exitUsage},
		"data is a file": {[]string{"--data", os.Args[0], "--listen", "127.0.0.1:0"}, "not a directory", exitFailed},
	} {
		var out bytes.Buffer
		if code := run(append([]string{"manager"}, c.args...), nil, &out, &out); code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: exit code %d, %s", name, code, out.String())
		}
	}
}

func TestFirstStartTellsTheNextSteps(t *testing.T) {
	p := newManagerProcess(t)
	p.start()
	rest, _ := p.end(syscall.SIGTERM)
	if !strings.Contains(rest, filepath.Join(p.data, "admin.yaml")) || !strings.Contains(rest, "token create") {
		t.Errorf("the first start said: %s", rest)
	}
	p.start()
	if rest, _ := p.end(syscall.SIGTERM); strings.Contains(rest, "first start") {
		t.Errorf("the second start said: %s", rest)
	}
}
