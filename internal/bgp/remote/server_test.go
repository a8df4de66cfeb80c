package remote

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/clock"
)

// runDir is short: a unix socket's path has at most 107 bytes.
func runDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "spk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// process is a server inside the test.
type process struct {
	t        *testing.T
	dir      string
	clock    *clock.Fake
	speaker  *bgp.Fake
	attached atomic.Bool
	client   *Client
	ended    chan error
	stop     context.CancelFunc
}

func startProcess(t *testing.T) *process {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &process{
		t: t, dir: runDir(t), clock: clock.NewFake(time.Unix(1000, 0)), speaker: &bgp.Fake{},
		ended: make(chan error, 1), stop: stop,
	}
	p.attached.Store(true)
	p.client = NewClient(p.dir)
	go func() { p.ended <- Serve(ctx, p.options()) }()
	t.Cleanup(stop)
	p.until("answers", func() bool { _, err := p.client.Status(ctx); return err == nil })
	return p
}

func (p *process) options() ServerOptions {
	return ServerOptions{
		RunDir: p.dir, Hold: 30 * time.Second, Speaker: p.speaker, Clock: p.clock, Log: slog.New(slog.DiscardHandler),
		Attached: func() (bool, error) { return p.attached.Load(), nil }, Version: "test",
	}
}

func (p *process) until(what string, ok func() bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for !ok() {
		if ctx.Err() != nil {
			p.t.Fatalf("%s: did not happen", what)
		}
		runtime.Gosched()
	}
}

// beats lets the server look at the data plane once more after d.
func (p *process) beats(d time.Duration) {
	p.t.Helper()
	p.until("the server waits for the next beat", func() bool { return p.clock.Waiting() > 0 })
	p.clock.Advance(max(d, heartbeatInterval))
	p.until("the server beats", func() bool { return p.clock.Waiting() > 0 })
}

func (p *process) routes() int { return len(p.speaker.State().Routes) }

func TestServerHoldsAndWithdraws(t *testing.T) {
	p := startProcess(t)
	ctx := context.Background()
	if err := p.client.Set(ctx, state("203.0.113.10")); err != nil {
		t.Fatal(err)
	}
	if st, err := p.client.Status(ctx); err != nil || len(st.Routes) != 1 || len(st.Peers) != 1 {
		t.Fatalf("status %+v, %v", st, err)
	}
	for range 2 { // a good look in between starts the count anew
		p.attached.Store(false)
		for range missedLooks - 1 {
			p.beats(0)
		}
		if p.routes() != 1 {
			t.Fatal("withdrawn before the data plane was missed often enough")
		}
		p.attached.Store(true)
		p.beats(0)
	}
	p.attached.Store(false)
	for range missedLooks {
		p.beats(0)
	}
	if p.routes() != 0 || len(p.speaker.State().Peers) != 1 {
		t.Fatalf("data plane gone: %d routes, %d peers", p.routes(), len(p.speaker.State().Peers))
	}
	if st, err := p.client.Status(ctx); err != nil || st.Withheld != "the data plane is not attached" {
		t.Fatalf("status %+v, %v", st, err)
	}
	p.attached.Store(true)
	p.beats(0)
	if p.routes() != 0 {
		t.Fatal("data plane back, but no agent has confirmed")
	}
	if err := p.client.Set(ctx, state("203.0.113.10")); err != nil || p.routes() != 1 {
		t.Fatalf("agent confirmed: %d routes, %v", p.routes(), err)
	}
	p.beats(30 * time.Second)
	if p.routes() != 1 {
		t.Fatal("within the hold time")
	}
	p.beats(0)
	if p.routes() != 0 {
		t.Fatal("after the hold time")
	}
}

func TestServerRepeatsWhatFailed(t *testing.T) {
	p := startProcess(t)
	p.speaker.Fail(errors.New("no way"))
	err := p.client.Set(context.Background(), state("203.0.113.10"))
	if err == nil || !strings.Contains(err.Error(), "no way") {
		t.Fatalf("got %v", err)
	}
	p.speaker.Fail(nil)
	p.beats(0)
	if p.routes() != 1 {
		t.Error("the next beat did not try again")
	}
}

func TestServerRefusesNonsenseAndStrangers(t *testing.T) {
	p := startProcess(t)
	bad := state("203.0.113.10")
	bad.Peers[0].Password, bad.Peers[0].ASN = "secret", 0
	err := p.client.Set(context.Background(), bad)
	const want = "set bgp state: peer 10.10.0.1: asn: 0: must be 1 to 4294967295"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	info, err := os.Stat(filepath.Join(p.dir, socketName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v", info.Mode(), err)
	}
	err = Serve(context.Background(), p.options())
	if err == nil || !strings.Contains(err.Error(), "another speaker runs here") {
		t.Errorf("a second server: %v", err)
	}
}

func TestStopEndsTheSessions(t *testing.T) {
	p := startProcess(t)
	if err := p.client.Set(context.Background(), state("203.0.113.10")); err != nil {
		t.Fatal(err)
	}
	if err := p.client.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-p.ended; err != nil || !p.speaker.Closed() {
		t.Errorf("ended with %v, closed %v", err, p.speaker.Closed())
	}
}

// speakerEnv makes the test binary a speaker process of that run directory.
const speakerEnv = "SHUNT_TEST_SPEAKER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(speakerEnv); dir != "" {
		err := Serve(context.Background(), ServerOptions{
			RunDir: dir, Hold: time.Minute, Speaker: &bgp.Fake{}, Clock: clock.System{}, Log: slog.New(slog.DiscardHandler),
			Attached: func() (bool, error) { return true, nil },
		})
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestSupervisorStartsAdoptsAndReplaces(t *testing.T) {
	dir := runDir(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client := NewClient(dir)
	pid := func() int {
		t.Helper()
		a, err := client.call(ctx, "GET", "/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		return a.PID
	}
	ensure := func(s *Supervisor, want bool) {
		t.Helper()
		if started, err := s.Ensure(ctx); err != nil || started != want {
			t.Fatalf("started %v, %v; want %v", started, err, want)
		}
	}
	supervisor := func() *Supervisor {
		return &Supervisor{
			Client: client, Command: []string{"/usr/bin/env", speakerEnv + "=" + dir, "/proc/self/exe"},
			Log: slog.New(slog.DiscardHandler),
		}
	}
	one := supervisor()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	one.Command[2] = self
	ensure(one, true)
	first := pid()
	if err := client.Set(ctx, state("203.0.113.10")); err != nil {
		t.Fatal(err)
	}
	if sid, err := unixGetsid(first); err != nil || sid != first {
		t.Errorf("session %d of process %d, %v: must be its own", sid, first, err)
	}
	two := supervisor() // an agent that restarted
	two.Command[2] = self
	ensure(two, false)
	if st, err := client.Status(ctx); err != nil || len(st.Routes) != 1 || pid() != first {
		t.Errorf("adopted: %+v, %v", st, err)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := client.Status(ctx); err != nil {
			break
		}
	}
	ensure(two, true)
	if pid() == first {
		t.Error("the old process answers")
	}
	if err := client.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	broken := &Supervisor{Client: client, Command: []string{"/bin/false"}, Log: slog.New(slog.DiscardHandler)}
	if _, err := broken.Ensure(ctx); err == nil || !strings.Contains(err.Error(), "it ended at once: exit status 1") {
		t.Errorf("got %v", err)
	}
}

// unixGetsid is getsid(2).
func unixGetsid(pid int) (int, error) {
	sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(sid), nil
}
