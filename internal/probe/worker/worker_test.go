package worker

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// TestOneAnswerPerAsk checks that each probe gets one answer, with any order of Ask, Remove and
// Close, and with slow servers.
func TestOneAnswerPerAsk(t *testing.T) {
	const limit, numbers = 3, 6
	check := lb.Check{Timeout: long, Interval: long}
	check.SetDefaults()
	rapid.Check(t, func(t *rapid.T) {
		var mu sync.Mutex
		asked, answered := [numbers]int{}, [numbers]int{}
		var closed bool
		var inside, most atomic.Int32
		got := make(chan uint32, 1000)
		a, err := New(Options{Clock: clock.System{}, Report: func(batch []probe.Answer) {
			mu.Lock()
			defer mu.Unlock()
			if closed {
				t.Error("an answer after Close returned")
			}
			for _, b := range batch {
				if answered[b.ID]++; answered[b.ID] > asked[b.ID] {
					t.Errorf("%d: %d answers to %d asks", b.ID, answered[b.ID], asked[b.ID])
				}
				got <- b.ID
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		a.network.limit = limit
		gate := make(chan struct{}, 1000)
		a.means.dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			for n := inside.Add(1); ; {
				if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			defer inside.Add(-1)
			select {
			case <-gate:
				return nil, syscall.ECONNREFUSED
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		known, waiting := [numbers]bool{}, [numbers]bool{}
		drain := func() {
			for len(got) > 0 {
				waiting[<-got] = false
			}
		}
		id := rapid.Uint32Range(0, numbers-1)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				i := id.Draw(t, "id")
				drain()
				if known[i] || waiting[i] {
					return
				}
				if err := a.Add(i, probe.Of(check, today4, uint16(1+i))); err != nil {
					t.Fatal(err)
				}
				known[i] = true
			},
			"ask": func(t *rapid.T) {
				var ids []uint32
				drain()
				for _, i := range rapid.SliceOfDistinct(id, rapid.ID[uint32]).Draw(t, "ids") {
					if !waiting[i] {
						ids, waiting[i] = append(ids, i), true
					}
				}
				mu.Lock()
				for _, i := range ids {
					asked[i]++
				}
				mu.Unlock()
				a.Ask(ids)
			},
			"remove":  func(t *rapid.T) { i := id.Draw(t, "id"); a.Remove(i); known[i] = false },
			"release": func(t *rapid.T) { gate <- struct{}{} },
			"": func(t *rapid.T) {
				a.mu.Lock()
				defer a.mu.Unlock()
				want := 0
				if slices.Contains(known[:], true) {
					want = 1
				}
				if len(a.checks) != want || a.network.working > limit || most.Load() > limit {
					t.Fatalf("%d prepared checks, not %d; %d goroutines, %d asked at once", len(a.checks), want, a.network.working, most.Load())
				}
			},
		})
		if rapid.Bool().Draw(t, "close at once") {
			a.Close()
			mu.Lock()
			closed = true
			mu.Unlock()
			a.Ask([]uint32{0})
			if a.Add(0, probe.Of(check, today4, 1)) == nil {
				t.Error("a closed asker takes targets")
			}
			return
		}
		for range numbers {
			gate <- struct{}{}
		}
		for drain(); slices.Contains(waiting[:], true); {
			waiting[<-got] = false
		}
		mu.Lock()
		defer mu.Unlock()
		if asked != answered {
			t.Errorf("asked %v, answered %v", asked, answered)
		}
	})
}

// TestVoidOfTheUnknown checks that a target that was removed before its turn, or never added, is
// answered Void and not probed.
func TestVoidOfTheUnknown(t *testing.T) {
	a, got := newAsker(t, Options{})
	a.network.limit = 1
	begun, gate := make(chan struct{}), make(chan struct{})
	a.means.dial = func(context.Context, netip.AddrPort) (net.Conn, error) {
		close(begun)
		<-gate
		return nil, syscall.ECONNREFUSED
	}
	check := lb.Check{Timeout: long, Interval: long}
	check.SetDefaults()
	for id := range uint32(2) {
		if err := a.Add(id, probe.Of(check, today4, uint16(1+id))); err != nil {
			t.Fatal(err)
		}
	}
	a.Ask([]uint32{0, 1, 5})
	<-begun
	a.Remove(0)
	a.Remove(1)
	close(gate)
	for i, want := range []probe.Answer{
		{ID: 0, Verdict: probe.Bad, Words: "connection refused"}, {ID: 1, Verdict: probe.Void, Words: "not wanted any more"},
		{ID: 5, Verdict: probe.Void, Words: "not wanted any more"},
	} {
		if answer := <-got; answer != want {
			t.Errorf("answer %d is %+v, want %+v", i, answer, want)
		}
	}
}

// TestOwnFaultsAreVoid checks that errors of this machine do not count as bad.
func TestOwnFaultsAreVoid(t *testing.T) {
	wrap := func(err error) error { return &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", err)} }
	for err, want := range map[error]finding{
		syscall.EMFILE:        {verdict: probe.Void, words: "not asked: socket: too many open files"},
		syscall.ENFILE:        {verdict: probe.Void, words: "not asked: socket: too many open files in system"},
		syscall.ENOBUFS:       {verdict: probe.Void, words: "not asked: socket: no buffer space available"},
		syscall.ENOMEM:        {verdict: probe.Void, words: "not asked: socket: cannot allocate memory"},
		syscall.EADDRNOTAVAIL: {verdict: probe.Void, words: "not asked: socket: cannot assign requested address"},
		syscall.EAGAIN:        {verdict: probe.Void, words: "not asked: socket: resource temporarily unavailable"},
		syscall.EACCES:        {verdict: probe.Void, words: "not asked: socket: permission denied"},
		syscall.EPERM:         {verdict: probe.Void, words: "not asked: socket: operation not permitted"},
		syscall.ECONNREFUSED:  {verdict: probe.Bad, words: "connection refused"},
		syscall.ECONNRESET:    {verdict: probe.Bad, words: "connected, but reset"},
		syscall.EHOSTUNREACH:  {verdict: probe.Bad, words: "host unreachable", silent: true},
		syscall.ENETUNREACH:   {verdict: probe.Bad, words: "network unreachable", silent: true},
		syscall.ETIMEDOUT:     {verdict: probe.Bad, words: "no connection within 500 ms", silent: true},
		syscall.EPROTO:        {verdict: probe.Bad, words: "no connection: socket: protocol error"},
	} {
		want.starved = want.verdict == probe.Void && err != syscall.EACCES && err != syscall.EPERM
		if got := noConnection(wrap(err), 500*time.Millisecond); got != want {
			t.Errorf("%v: got %+v, want %+v", err, got, want)
		}
	}
}

// TestRefusedTargets checks that Add returns an error for targets that cannot be probed.
func TestRefusedTargets(t *testing.T) {
	a, _ := newAsker(t, Options{})
	of := func(change func(*lb.Check)) probe.Target { return probe.Of(httpCheck(change), today4, 80) }
	for _, c := range []struct {
		target probe.Target
		want   string
	}{
		{probe.Target{}, "check: must be one"},
		{of(func(c *lb.Check) { c.Kind = lb.CheckDNS }), `kind: "dns": must be tcp, http, grpc or external`},
		{of(func(c *lb.Check) { c.Through = lb.ThroughTunnel }), `through: "tunnel": sockets ask directly only`},
		{of(func(c *lb.Check) { c.Path = "no path" }), `path: "no path": must be a path, with a query or without`},
		{of(func(c *lb.Check) { c.Body = "(" }), "body: \"(\": must be a regular expression: error parsing regexp: missing closing ): `(`"},
		{of(func(c *lb.Check) { c.Version = "3" }), `version: "3": must be "1.1" or "2"`},
		{probe.Of(httpCheck(nil), today4, 0), "address: 192.0.2.1:0: must be an address with a port"},
		{of(func(c *lb.Check) { c.Timeout = -1 }), "timeout: -1ns: must be above 0"},
	} {
		if err := a.Add(1, c.target); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	if len(a.targets)+len(a.checks) != 0 {
		t.Error("something of what was refused is kept")
	}
}

func TestCleanWords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		got := clean(string(rapid.SliceOf(rapid.Byte()).Draw(t, "words")))
		if len(got) > maxWords {
			t.Fatalf("%d bytes", len(got))
		}
		for _, r := range got {
			if r < ' ' || r == 0x7f || r == '\ufffd' {
				t.Fatalf("%q", got)
			}
		}
	})
}

// TestNothingLeaks checks that a thousand probes leave neither goroutines nor descriptors.
func TestNothingLeaks(t *testing.T) {
	ca := newAuthority(t)
	cert := ca.usual(t)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	server := &http.Server{Protocols: &protocols, TLSConfig: tlsOf(cert), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })}
	l := listen4(t)
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.ServeTLS(l, "", "") }()
	broken := serve(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)); reset(c) })
	plain := serve(t, func(c net.Conn) {
		defer c.Close()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
			waitGone(c)
		}
	})
	a, got := newAsker(t, Options{})
	var ids []uint32
	add := func(c lb.Check, at netip.AddrPort) {
		id := uint32(len(ids))
		if err := a.Add(id, probe.Of(c, at.Addr(), at.Port())); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	for _, version := range []string{lb.HTTP1, lb.HTTP2} {
		for _, body := range []string{"", "ok", "no"} {
			add(httpCheck(func(c *lb.Check) { c.Version, c.Body, c.TLS = version, body, true }), addressOf(l))
		}
		add(httpCheck(func(c *lb.Check) { c.Version, c.TLS = version, true }), broken)
	}
	add(grpcCheck(func(c *lb.Check) { c.TLS = true }), addressOf(l))
	add(httpCheck(nil), plain)
	round := func() {
		a.Ask(ids)
		for range ids {
			<-got
		}
	}
	round() // warm up: one-time allocations are done
	idle := [2]int{runtime.NumGoroutine(), descriptors(t)}
	for range 1000 / len(ids) {
		round()
	}
	for runtime.NumGoroutine() > idle[0] || descriptors(t) > idle[1] {
		runtime.Gosched()
	}
}

// descriptors returns the number of open descriptors of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
