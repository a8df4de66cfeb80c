package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/load"
	"github.com/shuntlb/shunt/internal/plan"
)

// loadTest is an agent whose servers have scripted loads.
type loadTest struct {
	*Agent
	t      *testing.T
	tables *dataplane.FakeHost
	fake   *clock.Fake
	ticks  load.Ticks
}

func newLoadTest(t *testing.T, bindings ...plan.Binding) *loadTest {
	w := &loadTest{t: t, tables: &dataplane.FakeHost{}, fake: clock.NewFake(time.Unix(1000, 0))}
	w.Agent = New(w.tables, settings(forwarding), &prober{}, w.fake, nil)
	w.loads.ticks = func() (load.Ticks, error) { return w.ticks, nil }
	w.plan(bindings...)
	return w
}

func (w *loadTest) plan(bindings ...plan.Binding) {
	w.t.Helper()
	if err := w.Apply(context.Background(), plan.Plan{MTU: 1500, Bindings: bindings}); err != nil {
		w.t.Fatal(err)
	}
}

// told takes a sample after an interval in which half of the processors were busy, and returns the
// reported loads by member id. It checks that Changed was notified if there are any.
func (w *loadTest) told() map[uint16]load.Load {
	w.t.Helper()
	w.fake.Advance(load.SampleEvery)
	w.ticks.All += 40
	w.ticks.Busy += 20
	w.loads.sample()
	poked := false
	select {
	case <-w.loads.Changed():
		poked = true
	default:
	}
	out := map[uint16]load.Load{}
	for _, m := range w.loads.Take() {
		out[m.Key.Member] = m.Load
	}
	if poked != (len(out) > 0) {
		w.t.Errorf("told %v, announced %v", out, poked)
	}
	return out
}

func member(id uint16, b plan.Binding) plan.Binding {
	b.Member = id
	return b
}

// TestLoadsOfMembers checks that each member of the plan is first reported with all known loads:
// the connections of all its bindings, the machine's processors, and its application's value while
// that is fresh. Later only changes are reported.
func TestLoadsOfMembers(t *testing.T) {
	one, two := member(1, binding("203.0.113.10", "10.20.1.11")), member(2, binding("203.0.113.10", "10.20.1.12"))
	other := one // with a different outer address
	other.Outer = netip.MustParseAddr("10.20.1.1")
	two.Load.Stale = 2 * time.Second
	w := newLoadTest(t, one, other, two)
	w.told() // the first sample has no processor load
	w.tables.SetConnections(map[lb.EndpointKey]map[uint16]uint64{one.Key: {1: 7}})
	half := load.Load{CPU: 500, Has: load.HasCPU}
	of := func(connections uint32, given float32, has load.Part) load.Load {
		return load.Load{Connections: connections, Opened: connections, CPU: 500, Given: given, Has: has | load.HasCPU}
	}
	expect := func(when string, want map[uint16]load.Load) {
		t.Helper()
		if got := w.told(); len(got) != len(want) || got[1] != want[1] || got[2] != want[2] {
			t.Errorf("%s: told %v, want %v", when, got, want)
		}
	}
	expect("what the host counts", map[uint16]load.Load{1: of(14, 0, load.HasConnections), 2: half})
	expect("nothing changed", nil)
	say := func(server string, value float32) error {
		a, err := netip.ParseAddrPort(server)
		if err != nil {
			a = netip.AddrPortFrom(netip.MustParseAddr(server), 0)
		}
		return w.loads.given.say(load.Said{Server: a, Given: value})
	}
	check(t, say("10.20.1.12:8080", 0.25))
	expect("an application of a port", map[uint16]load.Load{2: of(0, 0.25, load.HasGiven)})
	check(t, say("10.20.1.12", 0.5))
	expect("the same of all ports, later", map[uint16]load.Load{2: of(0, 0.5, load.HasGiven)})
	check(t, say("10.20.1.11", 3))
	expect("another one", map[uint16]load.Load{1: of(14, 3, load.HasConnections|load.HasGiven)})
	for _, server := range []string{"10.20.1.11:9090", "10.20.1.99", "198.51.100.1:8080"} {
		if err := say(server, 1); err == nil || !strings.Contains(err.Error(), server) {
			t.Errorf("%s: %v", server, err)
		}
	}
	w.fake.Advance(two.Load.Stale - 2*load.SampleEvery)
	expect("a word that is too old", map[uint16]load.Load{2: half})
	w.loads.Begin()
	expect("another stream", map[uint16]load.Load{1: of(14, 3, load.HasConnections|load.HasGiven), 2: half})
	w.plan(two)
	w.loads.Begin()
	expect("a member that left", map[uint16]load.Load{2: half})
	w.fake.Advance(linger)
	check(t, w.Expire())
	w.plan(one, two)
	expect("one that came back has to speak again", map[uint16]load.Load{1: of(7, 0, load.HasConnections)})
	w.fake.Advance(load.RefreshEvery)
	expect("now and then", map[uint16]load.Load{1: of(7, 0, load.HasConnections), 2: half})
}

// TestLoadsWithoutProcessors checks that the other loads are reported.
func TestLoadsWithoutProcessors(t *testing.T) {
	b := member(1, binding("203.0.113.10", "10.20.1.11"))
	w := newLoadTest(t, b)
	w.loads.ticks = func() (load.Ticks, error) { return load.Ticks{}, errors.New("no /proc") }
	w.tables.SetConnections(map[lb.EndpointKey]map[uint16]uint64{b.Key: {1: 7}})
	if got := w.told(); got[1] != (load.Load{Connections: 7, Opened: 7, Has: load.HasConnections}) {
		t.Errorf("told %v", got)
	}
	if _, err := machineTicks(); err != nil {
		t.Errorf("this machine: %v", err)
	}
}

// speaker is a connection to a load socket.
type speaker struct {
	net.Conn
	t *testing.T
}

func (s speaker) says(text, want string) {
	s.t.Helper()
	if _, err := s.Write([]byte(text)); err != nil {
		s.t.Fatal(err)
	}
	if got := s.answer(); !strings.HasPrefix(got, want) {
		s.t.Errorf("%q: answered %q, want %q", text, got, want)
	}
}

func (s speaker) answer() string {
	s.t.Helper()
	var line []byte
	for b := make([]byte, 1); ; {
		n, err := s.Read(b)
		if n == 0 && err != nil {
			return string(line)
		}
		if b[0] == '\n' {
			return string(line)
		}
		line = append(line, b[0])
	}
}

// awaitSocket waits until something listens at path.
func awaitSocket(t *testing.T, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("nothing listens again: %v", err)
		}
		runtime.Gosched()
	}
}

// TestLoadSocket checks that lines are answered one by one, bad ones with the reason, that the
// socket replaces one that was left, but no other file, and that it ends with the agent.
func TestLoadSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "load") // paths of sockets are short
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "run", "load.sock")
	w := newLoadTest(t, member(1, binding("203.0.113.10", "10.20.1.11")))
	serve := func() (stop func()) {
		t.Helper()
		s, err := openLoadSocket(path, w.loads.given, slog.New(slog.DiscardHandler), nil)
		check(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.serve(ctx) }()
		return func() { cancel(); check(t, <-done) }
	}
	dial := func() speaker {
		t.Helper()
		conn, err := net.Dial("unix", path)
		check(t, err)
		t.Cleanup(func() { conn.Close() })
		return speaker{conn, t}
	}
	stop := serve()
	s := dial()
	s.says("10.20.1.11:8080 0.75\n", "ok")
	s.says("10.20.1.11:8080 -1\n", "error: load: \"-1\": must be a number from 0 to 1e9")
	s.says("10.20.1.12:8080 1\n", "error: server: 10.20.1.12:8080: must be a backend on this host")
	s.says("hello\n", "error: line \"hello")
	if got := w.told()[1]; got.Given != 0.75 || got.Has&load.HasGiven == 0 {
		t.Errorf("told %+v", got)
	}
	s.says("10.20.1.11 1\n10.20.1.11 2\n", "ok")
	if got := s.answer(); got != "ok" {
		t.Errorf("the second of two lines: %q", got)
	}
	last := dial()
	if _, err := last.Write([]byte("10.20.1.11 4")); err != nil {
		t.Fatal(err)
	}
	check(t, last.Conn.(*net.UnixConn).CloseWrite())
	if got := last.answer(); got != "ok" {
		t.Errorf("a line without an end: %q", got)
	}
	if got := w.told()[1]; got.Given != 4 {
		t.Errorf("told %+v", got)
	}
	s.says(strings.Repeat("x", 300)+"\n", "error: line: must be at most 255 bytes")
	if got := s.answer(); got != "" {
		t.Errorf("the connection goes on: %q", got)
	}
	info, err := os.Stat(path)
	check(t, err)
	if info.Mode().Perm() != 0o660 {
		t.Errorf("mode %v", info.Mode())
	}
	open := dial()
	stop()
	if got := open.answer(); got != "" {
		t.Errorf("the agent ended, but says %q", got)
	}
	// A killed agent left its socket.
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	check(t, err)
	left.SetUnlinkOnClose(false)
	left.Close()
	stop = serve()
	dial().says("10.20.1.11 1\n", "ok")
	// Its directory is removed while the agent runs, as when /run is cleaned.
	check(t, os.RemoveAll(filepath.Dir(path)))
	awaitSocket(t, path)
	dial().says("10.20.1.11 1\n", "ok")
	stop()
	check(t, os.WriteFile(path, []byte("precious"), 0o600))
	if _, err := openLoadSocket(path, w.loads.given, slog.New(slog.DiscardHandler), nil); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file in its place: %v", err)
	}
}

// TestLoadPages checks that pages of servers are requested repeatedly while they are in the plan,
// and with its settings, and that only a number with status 200 counts.
func TestLoadPages(t *testing.T) {
	var body atomic.Value
	var asked atomic.Int64
	body.Store("200 0.5\n")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != "/load?short" || r.Host != "www.example" || r.Method != http.MethodGet {
			t.Errorf("asked %s %s of %s", r.Method, r.URL, r.Host)
		}
		asked.Add(1)
		status, text, _ := strings.Cut(body.Load().(string), " ")
		var code int
		fmt.Sscan(status, &code)
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(code)
		fmt.Fprint(w, text)
	}))
	defer server.Close()
	b := member(1, binding("203.0.113.10", "127.0.0.1"))
	b.DIPPort = netip.MustParseAddrPort(server.Listener.Addr().String()).Port()
	b.Load = lb.Load{HTTP: lb.LoadHTTP{Path: "/load?short", Host: "www.example"}}
	w := newLoadTest(t, b)
	a := newLoadAsker(w.loads.given, clock.System{}, w.log)
	p := sayerOf(&b).page
	for _, c := range []struct{ body, want string }{
		{"200 0.5\n", ""}, {"200 1e3", ""}, {"500 1", "status 500"}, {"302 1", "status 302"}, {"200 busy", "load: \"busy\""}, {"200 ", "load: \"\""},
		{"200 " + strings.Repeat("1", 300), "at most 256 bytes"},
	} {
		body.Store(c.body)
		got, err := a.ask(t.Context(), p)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %v, %v, want %q", c.body, got, err, c.want)
		}
	}
	if err := w.loads.given.say(load.Said{Server: netip.AddrPortFrom(b.DIP, b.DIPPort), Given: 1}); err == nil {
		t.Error("who is asked may speak by the socket")
	}
	body.Store("200 2")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.run(ctx) }()
	await := func(what string, met func() bool) {
		t.Helper()
		deadline := time.Now().Add(30 * time.Second)
		for !met() {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not met", what)
			}
			<-time.After(time.Millisecond)
		}
	}
	given := func() float32 { v, _ := w.loads.given.of(sayerOf(&b), w.fake.Now()); return v }
	await("the first word", func() bool { return given() == 2 })
	body.Store("200 3")
	await("the next one", func() bool { return given() == 3 })
	w.plan()
	await("nobody is asked", func() bool { return a.asking.Load() == 0 })
	before := asked.Load()
	w.plan(b)
	await("asked again", func() bool { return given() == 3 })
	if asked.Load() == before {
		t.Error("an answer without a question")
	}
	cancel()
	<-done
}

// TestLoadPagesAreShared checks that a page that members have in common is requested once.
func TestLoadPagesAreShared(t *testing.T) {
	one, two := member(1, binding("203.0.113.10", "10.20.1.11")), member(2, binding("203.0.113.11", "10.20.1.11"))
	one.Load.HTTP = lb.LoadHTTP{Path: "/load"}
	two.Load = one.Load
	third := member(3, binding("203.0.113.12", "10.20.1.11"))
	third.Load.HTTP = lb.LoadHTTP{Path: "/load", Port: 9090}
	w := newLoadTest(t, one, two, third)
	var servers []string
	for p := range w.loads.given.pages() {
		servers = append(servers, p.server.String())
	}
	slices.Sort(servers)
	if !slices.Equal(servers, []string{"10.20.1.11:8080", "10.20.1.11:9090"}) {
		t.Errorf("asked: %v", servers)
	}
}

// TestLoadInterval checks that a host samples at the configured interval, and reports the interval.
func TestLoadInterval(t *testing.T) {
	w := newLoadTest(t, member(1, binding("203.0.113.10", "10.20.1.11")))
	w.loads.lookEvery(20 * time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		w.loads.run(ctx)
		close(done)
	}()
	waits := func() {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); w.fake.Waiting() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it does not wait for its next look")
			}
		}
	}
	for range 3 {
		waits()
		w.ticks.All += 10
		w.ticks.Busy = w.ticks.All / 2
		w.fake.Advance(20 * time.Millisecond)
	}
	waits()
	cancel()
	<-done
	got := w.loads.Take()
	if len(got) != 1 || got[0].Every != 20*time.Millisecond || got[0].CPU != 500 {
		t.Errorf("told %+v", got)
	}
	if w := newLoadTest(t); w.loads.every != load.SampleEvery {
		t.Errorf("every %v where nothing is said", w.loads.every)
	}
}

// BenchmarkLoadSample measures a sample of members that all change, with its report.
func BenchmarkLoadSample(b *testing.B) {
	for _, n := range []int{20, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkLoadSample(b, n) })
	}
}

func benchmarkLoadSample(b *testing.B, n int) {
	fake := clock.NewFake(time.Unix(1000, 0))
	tables := &dataplane.FakeHost{}
	l := newLoads(tables, fake, nil)
	of := map[uint16]uint64{}
	var bindings []plan.Binding
	for i := range n {
		bindings = append(bindings, member(uint16(i), binding("203.0.113.10", fmt.Sprintf("10.20.%d.%d", 1+i/200, 11+i%200))))
	}
	tables.SetConnections(map[lb.EndpointKey]map[uint16]uint64{bindings[0].Key: of})
	if err := tables.Apply(dataplane.HostState{MTU: 1500, Bindings: bindings}); err != nil {
		b.Fatal(err)
	}
	l.follow(bindings)
	size := 0
	for b.Loop() {
		for i := range uint16(n) {
			of[i] = (of[i] + 40) % 1000
		}
		fake.Advance(load.SampleEvery)
		l.sample()
		raw, err := proto.Marshal(convert.ToLoadReport(l.Take()))
		if err != nil {
			b.Fatal(err)
		}
		size = len(raw)
	}
	b.ReportMetric(float64(size), "bytes/sample")
}
