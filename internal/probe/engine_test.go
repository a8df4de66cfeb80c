package probe

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
)

// serve answers every connection on a loopback address with f.
func serve(t *testing.T, f func(net.Conn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f(c)
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// answer reads a request, hands it to check and writes the status line.
func answer(status int, seen chan<- *http.Request) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		if seen != nil {
			seen <- r
		}
		fmt.Fprintf(c, "HTTP/1.1 %d X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", status)
	}
}

func start(t *testing.T, c clock.Clock) (*Engine, <-chan Result) {
	t.Helper()
	results := make(chan Result, 100)
	e := New(Options{Clock: c, Random: func() float64 { return 0 }, Report: func(rs []Result) { results <- rs[0] }})
	t.Cleanup(e.Close)
	return e, results
}

func target(a netip.AddrPort, kind string, timeout time.Duration) Target {
	return Of(check(kind, timeout), a.Addr(), a.Port())
}

func check(kind string, timeout time.Duration) lb.Check {
	c := lb.Check{Kind: kind, Timeout: timeout, Interval: time.Second}
	if kind == lb.CheckHTTP {
		c.Path = "/healthz?deep=1"
	}
	c.SetDefaults()
	return c
}

func TestWordsOfMisbehavingServers(t *testing.T) {
	refused := func() netip.AddrPort {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().(*net.TCPAddr).AddrPort()
	}()
	hang := serve(t, func(c net.Conn) { c.Read(make([]byte, 1<<16)); c.Read(make([]byte, 1)); c.Close() })
	shut := serve(t, func(c net.Conn) { c.Read(make([]byte, 1<<16)); c.Close() })
	noise := serve(t, func(c net.Conn) { c.Read(make([]byte, 1<<16)); fmt.Fprint(c, "SSH-2.0-x\r\n\r\n"); c.Close() })
	flood := serve(t, func(c net.Conn) {
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
		for range 1 << 14 {
			if _, err := fmt.Fprint(c, "X-Filler: 0123456789\r\n"); err != nil {
				return
			}
		}
	})
	const long, short = 10 * time.Second, 50 * time.Millisecond
	cases := []struct {
		name   string
		target Target
		good   bool
		words  string
	}{
		{"refuses", target(refused, lb.CheckTCP, long), false, "connection refused"},
		{"accepts", target(hang, lb.CheckTCP, long), true, "connected"},
		{"hangs", target(hang, lb.CheckHTTP, short), false, "connected, but no answer within 50 ms"},
		{"closes", target(shut, lb.CheckHTTP, long), false, "connected, but closed without an answer"},
		{"200", target(serve(t, answer(200, nil)), lb.CheckHTTP, long), true, "status 200"},
		{"302", target(serve(t, answer(302, nil)), lb.CheckHTTP, long), true, "status 302"},
		{"404", target(serve(t, answer(404, nil)), lb.CheckHTTP, long), false, "status 404"},
		{"503", target(serve(t, answer(503, nil)), lb.CheckHTTP, long), false, "status 503"},
		{"not http", target(noise, lb.CheckHTTP, long), false, `connected, but no HTTP answer: malformed HTTP response "SSH-2.0-x"`},
		{"endless headers", target(flood, lb.CheckHTTP, long), false, "connected, but no HTTP answer: headers are longer than 65536 bytes"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e, results := start(t, clock.NewFake(time.Unix(0, 0)))
			if err := e.Set([]Target{c.target}); err != nil {
				t.Fatal(err)
			}
			r := <-results
			if r.Good != c.good || r.Words != c.words || r.Target != c.target {
				t.Errorf("got %v %q, want %v %q", r.Good, r.Words, c.good, c.words)
			}
			if r.Silent {
				t.Error("a server that was heard of is called silent")
			}
		})
	}
}

// TestSilenceIsNoRefusal: only what nothing came back of tells of a way that may be broken.
func TestSilenceIsNoRefusal(t *testing.T) {
	for err, want := range map[error]bool{
		os.ErrDeadlineExceeded: true, syscall.EHOSTUNREACH: true, syscall.ENETUNREACH: true,
		syscall.ECONNREFUSED: false, syscall.ECONNRESET: false, syscall.EMFILE: false,
	} {
		if got := silent(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)}); got != want {
			t.Errorf("%v is silence: %v", err, got)
		}
	}
}

func TestRequestSaysWhatWasConfigured(t *testing.T) {
	seen := make(chan *http.Request, 2)
	a := serve(t, answer(204, seen))
	e, results := start(t, clock.NewFake(time.Unix(0, 0)))
	named := check(lb.CheckHTTP, 10*time.Second)
	named.Host = "www.example.com"
	want := Of(named, a.Addr(), a.Port())
	if err := e.Set([]Target{want}); err != nil {
		t.Fatal(err)
	}
	r := <-seen
	if r.Method != "GET" || r.RequestURI != "/healthz?deep=1" || r.Host != "www.example.com" || !r.Close {
		t.Errorf("got %s %s host %s close %v", r.Method, r.RequestURI, r.Host, r.Close)
	}
	<-results
}

func TestEqualTargetsAreProbedOnceAndOnTime(t *testing.T) {
	c := clock.NewFake(time.Unix(0, 0))
	accepted := make(chan struct{}, 10)
	a := serve(t, func(c net.Conn) { accepted <- struct{}{}; c.Close() })
	e, results := start(t, c)
	one := target(a, lb.CheckTCP, 10*time.Second)
	if err := e.Set([]Target{one, one, one}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		<-accepted
		<-results
		for c.Waiting() == 0 { // the engine is between report and timer
			runtime.Gosched()
		}
		if len(accepted) != 0 {
			t.Fatal("probed more than once per interval")
		}
		c.Advance(2 * time.Second)
	}
	<-accepted
	<-results
	if err := e.Set(nil); err != nil {
		t.Fatal(err)
	}
	c.Advance(time.Hour)
	e.Close()
	if len(results) != 0 {
		t.Error("a removed target was reported")
	}
}

func TestSetNamesWhatItCannotProbe(t *testing.T) {
	e, _ := start(t, clock.NewFake(time.Unix(0, 0)))
	err := e.Set([]Target{target(netip.MustParseAddrPort("10.0.0.1:80"), "icmp", 1)})
	const want = `probe 10.0.0.1:80: kind: "icmp": must be tcp or http`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestCloseDoesNotWaitForAHangingServer(t *testing.T) {
	hanging := make(chan struct{})
	a := serve(t, func(c net.Conn) { c.Read(make([]byte, 1<<16)); close(hanging); c.Read(make([]byte, 1)) })
	e, results := start(t, clock.NewFake(time.Unix(0, 0)))
	if err := e.Set([]Target{target(a, lb.CheckHTTP, time.Hour)}); err != nil {
		t.Fatal(err)
	}
	<-hanging
	e.Close()
	if len(results) != 0 {
		t.Error("a cancelled probe was reported")
	}
}

// TestOwnFaultsAreVoid: what this machine lacks is no fault of a server.
func TestOwnFaultsAreVoid(t *testing.T) {
	wrap := func(err error) error { return &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", err)} }
	for _, err := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if !ownFault(wrap(err)) {
			t.Errorf("%v: counts against the server", err)
		}
	}
	for _, err := range []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT, os.ErrDeadlineExceeded} {
		if ownFault(wrap(err)) {
			t.Errorf("%v: does not count against the server", err)
		}
	}
}

// TestChangeLeavesTheOthers: what is not named goes on, without a probe more.
func TestChangeLeavesTheOthers(t *testing.T) {
	accepted := make(chan int, 10)
	var targets []Target
	for i := range 3 {
		a := serve(t, func(c net.Conn) { accepted <- i; c.Close() })
		targets = append(targets, target(a, lb.CheckTCP, 10*time.Second))
	}
	c := clock.NewFake(time.Unix(0, 0))
	e, results := start(t, c)
	probed := func(n, waiting int) map[int]bool {
		out := map[int]bool{}
		for range n {
			out[<-accepted] = true
			<-results
		}
		for c.Waiting() < waiting { // the engine is between report and timer
			runtime.Gosched()
		}
		if len(accepted) != 0 {
			t.Fatal("probed more than that")
		}
		return out
	}
	if err := e.Set(targets[:2]); err != nil {
		t.Fatal(err)
	}
	probed(2, 2)
	bad := target(netip.MustParseAddrPort("10.0.0.1:80"), "icmp", 1)
	if err := e.Change([]Target{targets[1], targets[2], bad}, []Target{targets[0], bad}); err == nil || err.Error() != `probe 10.0.0.1:80: kind: "icmp": must be tcp or http` {
		t.Errorf("got %v", err)
	}
	if got := probed(1, 3); !got[2] {
		t.Errorf("probed %v, not the new one", got)
	}
	c.Advance(2 * time.Second)
	if got := probed(2, 2); !got[1] || !got[2] {
		t.Errorf("probed %v, not those that stay", got)
	}
	e.Close()
	if err := e.Change(targets[:1], nil); err == nil {
		t.Error("a closed engine probes")
	}
}
