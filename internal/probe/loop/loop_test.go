package loop

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/netdev"
	"github.com/shuntlb/shunt/internal/probe"
)

// serve answers every connection on a loopback address with f.
func serve(t *testing.T, on string, f func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", on)
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
			go f(c.(*net.TCPConn))
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// says reads once, writes a text and keeps the connection open until the peer closes it.
func says(text string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		defer c.Close()
		_, _ = c.Read(make([]byte, 1<<16))
		_, _ = c.Write([]byte(text))
		_, _ = c.Read(make([]byte, 1))
	}
}

// saysAndLeaves is like says, but closes the connection; reset: by RST.
func saysAndLeaves(text string, reset bool) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		defer c.Close()
		_, _ = c.Read(make([]byte, 1<<16))
		_, _ = c.Write([]byte(text))
		if reset {
			_ = c.SetLinger(0)
		}
	}
}

// answers returns a web server's response. The requests are sent to seen.
func answers(status int, seen chan<- *http.Request) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
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

// closedPort returns a loopback address without a listener.
func closedPort(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// fullBacklog listens, accepts no connection, and has a full backlog: SYNs are dropped.
func fullBacklog(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, address, err := noPlace()
	t.Cleanup(func() { unix.Close(fd) })
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", address.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return address
}

const (
	long  = 20 * time.Second
	short = 50 * time.Millisecond
)

// check returns a check with defaults.
func check(kind string, timeout time.Duration, change func(*lb.Check)) lb.Check {
	c := lb.Check{Kind: kind, Timeout: timeout, Interval: time.Minute}
	if kind == lb.CheckHTTP {
		c.Path = "/healthz?deep=1"
	}
	if change != nil {
		change(&c)
	}
	c.SetDefaults()
	return c
}

func of(c lb.Check, a netip.AddrPort) probe.Target { return probe.Of(c, a.Addr(), a.Port()) }

// rig is a prober with its answers.
type rig struct {
	*Asker
	t       *testing.T
	answers chan probe.Answer
	added   uint32
}

func newRig(t *testing.T, o Options) *rig {
	t.Helper()
	r := &rig{t: t, answers: make(chan probe.Answer, 1<<16)}
	a, err := New(o, func(answers []probe.Answer) {
		for _, a := range answers {
			r.answers <- a
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Asker = a
	t.Cleanup(func() { a.Close() })
	return r
}

func (r *rig) add(t probe.Target) uint32 {
	r.t.Helper()
	id := r.added
	r.added++
	if err := r.Add(id, t); err != nil {
		r.t.Fatal(err)
	}
	return id
}

// ask probes a target once.
func (r *rig) ask(t probe.Target) probe.Answer {
	r.t.Helper()
	id := r.add(t)
	r.Ask([]uint32{id})
	a := <-r.answers
	if a.ID != id {
		r.t.Fatalf("asked %d, %d answers", id, a.ID)
	}
	return a
}

// wordsCase is a server with the expected answer.
type wordsCase struct {
	name    string
	target  probe.Target
	verdict probe.Verdict
	silent  bool
	words   string
}

// compare probes each target twice: the second time on a used socket.
func (r *rig) compare(cases []wordsCase) {
	for range 2 {
		r.compareOnce(cases)
	}
}

func (r *rig) compareOnce(cases []wordsCase) {
	for _, c := range cases {
		r.t.Run(c.name, func(t *testing.T) {
			a := r.ask(c.target)
			if a.Verdict != c.verdict || a.Words != c.words || a.Silent != c.silent {
				t.Errorf("got verdict %d, silent %v: %q; want %d, %v: %q", a.Verdict, a.Silent, a.Words, c.verdict, c.silent, c.words)
			}
			if a.Took <= 0 || a.Took > c.target.Timeout()+long {
				t.Errorf("took %v", a.Took)
			}
		})
	}
}

// TestWordsOfMisbehavingServers checks verdict and text of each failure over TCP, on used sockets
// too.
func TestWordsOfMisbehavingServers(t *testing.T) {
	r := newRig(t, Options{Loops: 1})
	const local, local6 = "127.0.0.1:0", "[::1]:0"
	drip := func(c *net.TCPConn) {
		defer c.Close()
		_, _ = c.Read(make([]byte, 1<<16))
		for _, b := range []byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nServer: x\r\n\r\n") {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
		}
		_, _ = c.Read(make([]byte, 1))
	}
	flood := func(c *net.TCPConn) {
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
		for {
			if _, err := fmt.Fprint(c, "X-Filler: 0123456789\r\n"); err != nil {
				return
			}
		}
	}
	web := func(f func(*net.TCPConn), timeout time.Duration) probe.Target {
		return of(check(lb.CheckHTTP, timeout, nil), serve(t, local, f))
	}
	talk := func(f func(*net.TCPConn), timeout time.Duration, send, expect string) probe.Target {
		return of(check(lb.CheckTCP, timeout, func(c *lb.Check) { c.Send, c.Expect = send, expect }), serve(t, local, f))
	}
	tcp := func(timeout time.Duration) lb.Check { return check(lb.CheckTCP, timeout, nil) }
	bytes := func(send, expect string) probe.Target {
		return of(check(lb.CheckTCP, long, func(c *lb.Check) { c.SendHex, c.ExpectHex = send, expect }), serve(t, local, knows))
	}
	r.compare([]wordsCase{
		{"refuses", of(tcp(long), closedPort(t)), probe.Bad, false, "connection refused"},
		{"refuses HTTP", of(check(lb.CheckHTTP, long, nil), closedPort(t)), probe.Bad, false, "connection refused"},
		{"drops SYNs", of(tcp(short), fullBacklog(t)), probe.Bad, true, "no connection within 50 ms"},
		{"accepts", talk(says(""), long, "", ""), probe.Good, false, "connected"},
		{"accepts over IPv6", of(tcp(long), serve(t, local6, says(""))), probe.Good, false, "connected"},
		{"hangs", web(says(""), short), probe.Bad, false, "connected, but no bytes within 50 ms"},
		{"begins and hangs", web(says("HTTP/1.1 200 OK\r\nServer: "), time.Second), probe.Bad, false, "connected, but no answer within 1000 ms"},
		{"drips", web(drip, long), probe.Good, false, "status 200"},
		{"closes", web(saysAndLeaves("", false), long), probe.Bad, false, "connected, but closed without an answer"},
		{"closes in the middle", web(saysAndLeaves("HTTP/1.1 200 OK\r\nSer", false), long), probe.Bad, false, "connected, but closed without an answer"},
		{"resets", web(saysAndLeaves("", true), long), probe.Bad, false, "connected, but reset"},
		{"resets in the middle", web(saysAndLeaves("HTTP/1.1 200 OK\r\nSer", true), long), probe.Bad, false, "connected, but reset"},
		{"200", web(answers(200, nil), long), probe.Good, false, "status 200"},
		{"200 over IPv6", of(check(lb.CheckHTTP, long, nil), serve(t, local6, answers(200, nil))), probe.Good, false, "status 200"},
		{"302", web(answers(302, nil), long), probe.Good, false, "status 302"},
		{"404", web(answers(404, nil), long), probe.Bad, false, "status 404"},
		{"503", web(answers(503, nil), long), probe.Bad, false, "status 503"},
		{"not HTTP", web(saysAndLeaves("SSH-2.0-x\r\n\r\n", false), long), probe.Bad, false,
			`connected, but no HTTP answer: malformed HTTP response "SSH-2.0-x"`},
		{"endless headers", web(flood, long), probe.Bad, false, "connected, but no HTTP answer: headers are longer than 65536 bytes"},
		{"answers as expected", talk(says("+PONG\r\n"), long, "PING\r\n", "PONG"), probe.Good, false, "connected, and answered"},
		{"answers bytes that are no text", bytes("00ff80", "fffe0001"), probe.Good, false, "connected, and answered"},
		{"answers other bytes", bytes("00ff80", "fffe0002"), probe.Bad, false, `connected, but closed without "\xff\xfe\x00\x02"`},
		{"is sent other bytes", bytes("00ff81", "fffe0001"), probe.Bad, false, "connected, but closed without an answer"},
		{"takes what is sent", talk(says(""), long, "PING\r\n", ""), probe.Good, false, "connected"},
		{"answers otherwise", talk(saysAndLeaves("-ERR", false), long, "PING\r\n", "PONG"), probe.Bad, false, `connected, but closed without "PONG"`},
		{"answers otherwise and stays", talk(says("-ERR"), time.Second, "PING\r\n", "PONG"), probe.Bad, false, `connected, but no "PONG" within 1000 ms`},
		{"says nothing", talk(says(""), short, "PING\r\n", "PONG"), probe.Bad, false, "connected, but no bytes within 50 ms"},
		{"talks without end", talk(flood, long, "", "PONG"), probe.Bad, false, `connected, but no "PONG" in the first 65536 bytes`},
	})
}

// knows answers the bytes 00 ff 80 with ff fe 00 01, and others with nothing.
func knows(c *net.TCPConn) {
	defer c.Close()
	b := make([]byte, 3)
	if _, err := io.ReadFull(c, b); err == nil && string(b) == "\x00\xff\x80" {
		_, _ = c.Write([]byte("\x01\xff\xfe\x00\x01"))
	}
}

// TestServersThatSpeakFirstDoNotWait checks servers that send first with a timeout shorter than the
// kernel's delay of an acknowledgement. Without the acknowledgement the server's connection is not
// established, and it cannot send its greeting.
func TestServersThatSpeakFirstDoNotWait(t *testing.T) {
	const shorter = 150 * time.Millisecond
	greets := of(check(lb.CheckTCP, shorter, func(c *lb.Check) { c.Expect = "220" }), serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		defer c.Close()
		_, _ = c.Write([]byte("220 hello"))
		_, _ = c.Read(make([]byte, 1))
	}))
	r := newRig(t, Options{Loops: 1})
	// A busy machine may miss the time, but not every time.
	for end := time.Now().Add(time.Minute); ; {
		a := r.ask(greets)
		if a.Verdict == probe.Good {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("got %+v", a)
		}
	}
}

// TestConnectionsAreNotAcknowledgedTwice checks that a probe that only connects sends a SYN and a
// RST, and no segment between them.
func TestConnectionsAreNotAcknowledgedTwice(t *testing.T) {
	const n = 50
	name := namespace(t, "segments")
	var listener net.Listener
	var before, after int
	in := func(f func() error) {
		t.Helper()
		if err := netdev.In(name, f); err != nil {
			t.Fatal(err)
		}
	}
	in(func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:80")
		return err
	})
	defer listener.Close()
	r := newRig(t, Options{Loops: 1, Enter: enter(name)})
	tcp := of(check(lb.CheckTCP, long, nil), listener.Addr().(*net.TCPAddr).AddrPort())
	in(func() (err error) { before, err = counterOf("snmp", "OutSegs"); return err })
	for range n {
		if a := r.ask(tcp); a.Verdict != probe.Good {
			t.Fatalf("got %+v", a)
		}
	}
	in(func() (err error) { after, err = counterOf("snmp", "OutSegs"); return err })
	// The SYN, the server's SYN-ACK, the RST.
	if got := after - before; got != 3*n {
		t.Errorf("%d segments for %d connections", got, n)
	}
}

func TestRequestSaysWhatWasConfigured(t *testing.T) {
	seen := make(chan *http.Request, 1)
	r := newRig(t, Options{})
	a := serve(t, "127.0.0.1:0", answers(204, seen))
	for _, c := range []struct{ host, headers, agent, want string }{
		{"", "", "shunt", a.String()},
		{"www.example.com", "User-Agent: Probe/1\nX-Two: a: b", "Probe/1", "www.example.com"},
	} {
		got := r.ask(of(check(lb.CheckHTTP, long, func(k *lb.Check) { k.Host, k.Headers, k.Method = c.host, lb.Headers(c.headers), "HEAD" }), a))
		if got.Verdict != probe.Good || got.Words != "status 204" {
			t.Fatalf("got %+v", got)
		}
		q := <-seen
		if q.Method != "HEAD" || q.RequestURI != "/healthz?deep=1" || q.Host != c.want || !q.Close || q.UserAgent() != c.agent ||
			len(q.Header.Values("User-Agent")) != 1 || q.Header.Get("Accept") != "*/*" || (c.headers != "") != (q.Header.Get("X-Two") == "a: b") {
			t.Errorf("got %s %s host %s close %v header %v", q.Method, q.RequestURI, q.Host, q.Close, q.Header)
		}
	}
}

// TestManyWaitForFew checks, with few concurrent probes, that every target is probed once, whatever
// its neighbours do, and that a timeout runs from when a probe begins.
func TestManyWaitForFew(t *testing.T) {
	const n, few = 600, 8
	r := newRig(t, Options{Loops: 2, InFlight: few})
	web, hang := serve(t, "127.0.0.1:0", answers(200, nil)), serve(t, "127.0.0.1:0", says(""))
	refuses := closedPort(t)
	want := map[uint32]string{}
	var ids []uint32
	for i := range n {
		target, words := of(check(lb.CheckHTTP, long, nil), web), "status 200"
		switch i % 3 {
		case 1:
			target, words = of(check(lb.CheckTCP, long, nil), refuses), "connection refused"
		case 2:
			target, words = of(check(lb.CheckHTTP, short, nil), hang), "connected, but no bytes within 50 ms"
		}
		id := r.add(target)
		ids, want[id] = append(ids, id), words
	}
	r.Ask(ids)
	for range n {
		a := <-r.answers
		if a.Words != want[a.ID] {
			t.Errorf("%d: got %q, want %q", a.ID, a.Words, want[a.ID])
		}
		delete(want, a.ID)
	}
	if len(want) > 0 || len(r.answers) > 0 {
		t.Errorf("%d were not answered, %d too often", len(want), len(r.answers))
	}
	if s := r.Stats(); s.Sockets > 2*few || s.Starved != 0 {
		t.Errorf("stats %+v", s)
	}
	for _, id := range ids {
		r.Remove(id)
	}
	if len(r.questions) != 0 {
		t.Errorf("%d checks are remembered", len(r.questions))
	}
	r.Ask(ids[:1])
	if a := <-r.answers; a.Verdict != probe.Void {
		t.Errorf("a target that was removed has a verdict: %+v", a)
	}
}

func TestWhatNeedsOthersIsRefused(t *testing.T) {
	r := newRig(t, Options{Loops: 1})
	address := netip.MustParseAddrPort("127.0.0.1:80")
	for name, c := range map[string]lb.Check{
		"TLS":      check(lb.CheckHTTP, long, func(c *lb.Check) { c.TLS = true }),
		"HTTP/2":   check(lb.CheckHTTP, long, func(c *lb.Check) { c.Version = lb.HTTP2 }),
		"body":     check(lb.CheckHTTP, long, func(c *lb.Check) { c.Body = "x" }),
		"gRPC":     check(lb.CheckGRPC, long, nil),
		"external": check(lb.CheckExternal, long, nil),
	} {
		if err := r.Add(0, of(c, address)); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := r.Add(0, of(check(lb.CheckTCP, long, func(c *lb.Check) { c.Through = lb.ThroughTunnel }), address)); err == nil {
		t.Error("a tunnel is no way for sockets")
	}
}

// TestCloseDoesNotWaitForAHangingServer checks that Close returns immediately and no answer follows
// it.
func TestCloseDoesNotWaitForAHangingServer(t *testing.T) {
	hanging := make(chan struct{})
	a := serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1<<16))
		close(hanging)
		_, _ = c.Read(make([]byte, 1))
		c.Close()
	})
	r := newRig(t, Options{Loops: 2})
	r.Ask([]uint32{r.add(of(check(lb.CheckHTTP, time.Hour, nil), a))})
	<-hanging
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if len(r.answers) != 0 {
		t.Error("a cancelled probe was answered")
	}
}

func TestEnterMayFail(t *testing.T) {
	want := errors.New("no such namespace")
	if _, err := New(Options{Enter: func() error { return want }}, nil); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}

// TestOwnFaultsAreVoid checks that errors of this machine are void, and that only probes without
// any response are silent.
func TestOwnFaultsAreVoid(t *testing.T) {
	for _, err := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EADDRNOTAVAIL, unix.EPERM} {
		if f := noConnection(err); f.verdict != probe.Void || f.silent || f.words != "not asked: "+err.Error() {
			t.Errorf("%v: %+v", err, f)
		}
		if f := broken(err); f.verdict != probe.Void {
			t.Errorf("%v: %+v", err, f)
		}
	}
	for err, silent := range map[unix.Errno]bool{
		unix.ECONNREFUSED: false, unix.ECONNRESET: false, unix.EHOSTUNREACH: true, unix.ENETUNREACH: true, unix.EPROTO: false,
	} {
		if f := noConnection(err); f.verdict != probe.Bad || f.silent != silent {
			t.Errorf("%v: %+v", err, f)
		}
	}
}
