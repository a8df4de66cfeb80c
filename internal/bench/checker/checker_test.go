package checker

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/probe"
)

// halfAsker returns results in two batches. Odd targets fail.
type halfAsker struct {
	targets []probe.Target
	answers func([]probe.Answer)
	running sync.WaitGroup
}

func (a *halfAsker) Add(_ uint32, t probe.Target) error { a.targets = append(a.targets, t); return nil }
func (a *halfAsker) Remove(uint32)                      {}
func (a *halfAsker) Close() error                       { a.running.Wait(); return nil }

func (a *halfAsker) Ask(ids []uint32) {
	for _, half := range [][]uint32{ids[len(ids)/2:], ids[:len(ids)/2]} {
		var batch []probe.Answer
		for _, id := range half {
			verdict := probe.Good
			if id%2 == 1 {
				verdict = probe.Bad
			}
			batch = append(batch, probe.Answer{ID: id, Verdict: verdict})
		}
		a.running.Go(func() { a.answers(batch) })
	}
}

func TestBurstWaitsForAllAnswers(t *testing.T) {
	a := &halfAsker{}
	job := Job{Engine: "packet", Kind: HTTP, First: netip.MustParseAddr("10.0.0.255"), Port: 80, Targets: 5, Interval: time.Second, Timeout: time.Second}
	b, err := newBurst(job, func(answers func([]probe.Answer)) (probe.Asker, error) {
		a.answers = answers
		return a, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got, err := b.once(t.Context()); err != nil || got != (Tally{Good: 3, Bad: 2}) {
			t.Errorf("%+v, %v: want 3 good, 2 bad", got, err)
		}
	}
	if len(a.targets) != 5 || a.targets[1].Address != netip.MustParseAddrPort("10.0.1.0:80") {
		t.Errorf("targets %v", a.targets)
	}
	if c := a.targets[0].Check.Value(); c.Kind != "http" || c.Path != "/" || c.Engine != "packet" || a.targets[0].Check != a.targets[4].Check {
		t.Errorf("check %+v", c)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// serve accepts on loopback, according to the job's kind. Odd requests of HTTP get a 503.
func serve(t *testing.T, kind string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if kind == HTTP {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || r.URL.Path != "/" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
	}
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// orders sends orders one by one and returns the responses.
func orders(t *testing.T, job Job, lines ...string) (answers []Tally) {
	t.Helper()
	in, give := io.Pipe()
	take, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(t.Context(), job, in, out); out.Close() }()
	read := json.NewDecoder(bufio.NewReader(take))
	for _, line := range append([]string{""}, lines...) {
		if line != "" {
			if _, err := io.WriteString(give, line+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		var a Tally
		if err := read.Decode(&a); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		answers = append(answers, a)
	}
	give.Close()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return answers[1:]
}

func TestGoroutines(t *testing.T) {
	for _, kind := range []string{TCP, HTTP} {
		up := serve(t, kind)
		job := Job{
			Engine: "go", Kind: kind, First: up.Addr(), Port: up.Port(), Targets: 1, InFlight: 2, Interval: time.Hour, Timeout: time.Minute,
		}
		got := orders(t, job, OrderPrepare, OrderOnce, OrderOnce, OrderMemory, OrderReport)[1:]
		for _, a := range got[:2] {
			if a.Good != 1 || a.Bad != 0 || a.WallNS <= 0 {
				t.Errorf("%s: %+v: want one good verdict", kind, a)
			}
		}
		if m := got[2].Memory; m == nil || m.Resident == 0 || m.Heap == 0 || got[3] != (Tally{}) {
			t.Errorf("%s: memory %+v, steady %+v", kind, got[2], got[3])
		}
		// The addresses after it have no listener.
		job.Targets = 3
		if got := orders(t, job, OrderOnce)[0]; got.Good != 1 || got.Bad != 2 {
			t.Errorf("%s: %+v: want one good and two bad verdicts", kind, got)
		}
	}
}

// The target of a steady run is probed repeatedly.
func TestGoroutinesSteadily(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	c, err := newGoroutines(Job{
		Kind: TCP, First: at.Addr(), Port: at.Port(), Targets: 1, InFlight: 2, Interval: time.Millisecond, Timeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Steady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
}

func TestServeRefuses(t *testing.T) {
	job := Job{Engine: "go", Kind: TCP, First: netip.MustParseAddr("127.0.0.1"), InFlight: 1}
	if err := Serve(t.Context(), job, strings.NewReader("dance\n"), io.Discard); err == nil || !strings.Contains(err.Error(), "order dance: must be prepare, ") {
		t.Errorf("unknown order: %v", err)
	}
	job.Engine = "x"
	if err := Serve(t.Context(), job, strings.NewReader(""), io.Discard); err == nil || Has("x") || !Has("go") {
		t.Errorf("unknown engine: %v", err)
	}
}

func TestArgsAreFlags(t *testing.T) {
	args := Job{Engine: "e", Kind: TCP, First: netip.MustParseAddr("10.0.0.1"), Port: 1, Targets: 2, Interval: 3 * time.Second, Timeout: 4 * time.Millisecond, InFlight: 5, Device: "d", Pins: "p"}.Args()
	want := strings.Fields("--engine e --kind tcp --first 10.0.0.1 --port 1 --targets 2 --interval-ms 3000 --timeout-ms 4 --in-flight 5 --device d --pins p")
	if !slices.Equal(args, want) {
		t.Errorf("%q, want %q", args, want)
	}
}
