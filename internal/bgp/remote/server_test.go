package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lock"
)

// runDir returns a short path, because a unix socket's path has at most 107 bytes.
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
		Attached: func() (bool, error) { return p.attached.Load(), nil }, Version: "test", Commit: "0123abcd",
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

// beats advances the clock by d and waits for one more check of the data plane.
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
	build := bgp.Process{PID: os.Getpid(), Version: "test", Commit: "0123abcd"}
	if st, err := p.client.Status(ctx); err != nil || len(st.Routes) != 1 || len(st.Peers) != 1 || st.Process != build {
		t.Fatalf("status %+v, %v", st, err)
	}
	for range 2 { // a good check resets the count
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

// TestServerKeepsItsRunDirectory: an agent that starts finds the running speaker after others
// changed the run directory. A second speaker would take the sessions with routers from the first
// one, or end immediately, and the routes would be withdrawn after the hold time.
func TestServerKeepsItsRunDirectory(t *testing.T) {
	p := startProcess(t)
	if err := p.client.Set(t.Context(), state("203.0.113.10")); err != nil {
		t.Fatal(err)
	}
	for name, harm := range map[string]func() error{
		"socket removed":    func() error { return os.Remove(filepath.Join(p.dir, socketName)) },
		"directory removed": func() error { return os.RemoveAll(p.dir) },
		"socket stolen": func() error {
			path := filepath.Join(p.dir, socketName)
			if err := os.Remove(path); err != nil {
				return err
			}
			_, err := net.Listen("unix", path)
			return err
		},
	} {
		if err := harm(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// Existing connections continue; the next agent has none.
		p.until(name+": a new client reaches the speaker", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			next := NewClient(p.dir)
			defer next.Close()
			st, err := next.Status(ctx)
			return err == nil && len(st.Routes) == 1
		})
		if err := Serve(context.Background(), p.options()); err == nil || !strings.Contains(err.Error(), "another speaker runs here") {
			t.Errorf("%s: a second server: %v", name, err)
		}
	}
	if _, err := p.client.Status(t.Context()); err != nil || p.routes() != 1 {
		t.Errorf("the agent that was there: %v, %d routes", err, p.routes())
	}
}

// TestSecondSpeakerReplacesFirst: if an agent starts a second speaker between a removal of the run
// directory and its repair, the first one ends.
func TestSecondSpeakerReplacesFirst(t *testing.T) {
	p := startProcess(t)
	if err := os.RemoveAll(p.dir); err != nil {
		t.Fatal(err)
	}
	own, err := lock.Take(filepath.Join(p.dir, lockName))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	// It ends at its next beat.
	ended := errors.New("still runs")
	p.until("the first ends", func() bool {
		select {
		case ended = <-p.ended:
			return true
		default:
			if p.clock.Waiting() > 0 {
				p.clock.Advance(time.Millisecond)
			}
			return false
		}
	})
	if ended != nil {
		t.Error(ended)
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
		if _, err := Schedule(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		err := Serve(context.Background(), ServerOptions{
			RunDir: dir, Hold: time.Minute, Speaker: &bgp.Fake{}, Clock: clock.System{}, Log: slog.New(slog.DiscardHandler),
			Attached: func() (bool, error) { return true, nil }, Version: fmt.Sprint("restarting ", slices.Contains(os.Args, RestartingFlag)),
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
		a, err := client.call(ctx, "GET", "/v1/status", nil, nil)
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
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", first))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		if attr, err := unix.SchedGetAttr(id, 0); err != nil || attr.Policy != unix.SCHED_RR || attr.Priority != realTimePriority {
			t.Errorf("thread %d of %d: %+v, %v; want SCHED_RR", id, first, attr, err)
		}
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
	build := func() string {
		t.Helper()
		st, err := client.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return st.Process.Version
	}
	if got := build(); got != "restarting true" {
		t.Errorf("one that takes a killed one's place is started as %s", got)
	}
	// Replaced: killed, for routers that keep the routes, or stopped.
	for _, keep := range []bool{true, false} {
		if err := client.Set(ctx, state("203.0.113.10")); err != nil {
			t.Fatal(err)
		}
		former := pid()
		if err := two.Replace(ctx, keep); err != nil {
			t.Fatal(err)
		}
		if got, want := build(), fmt.Sprint("restarting ", keep); pid() == former || got != want {
			t.Errorf("process %d, before %d, was started as %s, want %s", pid(), former, got, want)
		}
		if st, err := client.Status(ctx); err != nil || len(st.Routes) != 0 || st.Withheld != "no agent has spoken yet" {
			t.Errorf("a new speaker has status %+v, %v", st, err)
		}
		if err := client.Set(ctx, state("203.0.113.10")); err != nil {
			t.Errorf("a new speaker takes no state: %v", err)
		}
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

// TestSignOfLife: neither a state that the speaker has nor routes that the agent has are sent
// again. Both are sent after the speaker was replaced, and are correct after each change.
func TestSignOfLife(t *testing.T) {
	p := startProcess(t)
	ctx := context.Background()
	var sent atomic.Int64
	transport := p.client.http.Transport
	p.client.http.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		sent.Add(r.ContentLength)
		resp, err := transport.RoundTrip(r)
		if err == nil {
			resp.Body = &counted{resp.Body, &sent}
		}
		return resp, err
	})
	rapid.Check(t, func(rt *rapid.T) {
		vips := rapid.SliceOfNDistinct(rapid.IntRange(1, 250), 1, 40, rapid.ID).Draw(rt, "vips")
		var names []string
		for _, v := range vips {
			names = append(names, fmt.Sprintf("203.0.113.%d", v))
		}
		want := state(names...)
		for range 2 {
			if err := p.client.Set(ctx, want); err != nil {
				rt.Fatal(err)
			}
			st, err := p.client.Status(ctx)
			if err != nil || !slices.Equal(st.Routes, want.Routes) || !p.speaker.State().Equal(want) {
				rt.Fatalf("%d routes wanted, %d announced, %d reported: %v", len(want.Routes), p.routes(), len(st.Routes), err)
			}
		}
		sent.Store(0)
		if err := p.client.Set(ctx, want); err != nil {
			rt.Fatal(err)
		}
		if _, err := p.client.Status(ctx); err != nil {
			rt.Fatal(err)
		}
		if n := sent.Load(); n > 1000 {
			rt.Fatalf("%d bytes for a sign of life with %d routes", n, len(want.Routes))
		}
	})
	// After a hold time without a message from the agent, the sign of life restores the routes.
	p.beats(31 * time.Second)
	if p.routes() != 0 {
		t.Fatal("after the hold time")
	}
	want := state("203.0.113.7")
	for range 2 {
		if err := p.client.Set(ctx, want); err != nil || p.routes() != 1 {
			t.Fatalf("%d routes, %v", p.routes(), err)
		}
		p.beats(31 * time.Second)
		p.beats(0)
	}
	if st, err := p.client.Status(ctx); err != nil || len(st.Routes) != 0 || st.Withheld != "the agent is away" {
		t.Fatalf("status %+v, %v", st, err)
	}
	// Another process does not have the state.
	p.stop()
	if err := <-p.ended; err != nil {
		t.Fatal(err)
	}
	next, stop := context.WithCancel(ctx)
	defer stop()
	p.speaker = &bgp.Fake{}
	ended := make(chan error, 1)
	go func() { ended <- Serve(next, p.options()) }()
	p.until("the next process answers", func() bool { _, err := p.client.Status(ctx); return err == nil })
	if err := p.client.Set(ctx, want); err != nil || p.routes() != 1 {
		t.Fatalf("the next process: %d routes, %v", p.routes(), err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// TestSignOfLifeOfFormerSpeaker: a speaker of a build without signs of life receives the whole
// state each time.
func TestSignOfLifeOfFormerSpeaker(t *testing.T) {
	dir := runDir(t)
	listener, err := net.Listen("unix", filepath.Join(dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	var sets atomic.Int32
	h := http.NewServeMux()
	h.HandleFunc("POST /v1/set", func(w http.ResponseWriter, r *http.Request) {
		var got bgp.State
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil || len(got.Routes) != 1 {
			t.Errorf("state %v, %v", got, err)
		}
		sets.Add(1)
		fmt.Fprint(w, `{"version":"former","pid":1,"status":{"Routes":null,"Peers":null,"Withheld":""}}`)
	})
	server := &http.Server{Handler: h}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	c := NewClient(dir)
	for range 3 {
		if err := c.Set(context.Background(), state("203.0.113.10")); err != nil {
			t.Fatal(err)
		}
	}
	if n := sets.Load(); n != 3 {
		t.Errorf("%d states arrived, want 3", n)
	}
}

// roundTrip is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// counted counts the bytes read.
type counted struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// BenchmarkSignOfLife measures the work of an idle mux twice a second, at both ends: a check
// whether the speaker runs, its wanted state, the status, and ten beats of the speaker.
func BenchmarkSignOfLife(b *testing.B) {
	for _, routes := range []int{1000, 20_000, 60_000} {
		b.Run(strconv.Itoa(routes), func(b *testing.B) {
			dir, err := os.MkdirTemp("", "spk")
			if err != nil {
				b.Fatal(err)
			}
			defer os.RemoveAll(dir)
			ctx, stop := context.WithCancel(context.Background())
			s := &server{
				ServerOptions: ServerOptions{
					RunDir: dir, Hold: time.Hour, Speaker: &bgp.Fake{}, Clock: clock.System{}, Log: slog.New(slog.DiscardHandler),
					Attached: func() (bool, error) { return true, nil },
				}, keeper: NewKeeper(time.Hour), nonce: 7,
			}
			ended := make(chan error, 1)
			go func() { ended <- Serve(ctx, s.ServerOptions) }()
			c := NewClient(dir)
			for {
				if _, err := c.Status(ctx); err == nil {
					break
				}
				runtime.Gosched()
			}
			want := state()
			for i := range routes {
				a := netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)})
				want.Routes = append(want.Routes, bgp.Route{Prefix: netip.PrefixFrom(a, 32), NextHop: netip.MustParseAddr("10.10.0.11")})
			}
			if err := c.Set(ctx, want); err != nil {
				b.Fatal(err)
			}
			s.keeper.Set(time.Now(), want)
			for b.Loop() {
				if _, err := c.Status(ctx); err != nil {
					b.Fatal(err)
				}
				if err := c.Set(ctx, want); err != nil {
					b.Fatal(err)
				}
				if _, err := c.Status(ctx); err != nil {
					b.Fatal(err)
				}
				s.mu.Lock()
				for range 10 {
					s.lookedLocked(true)
					if err := s.sayLocked(ctx); err != nil {
						b.Fatal(err)
					}
				}
				s.mu.Unlock()
			}
			stop()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		})
	}
}
