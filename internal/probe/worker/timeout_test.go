package worker

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// TestTimeouts checks that the text of a timeout names the last step that the server completed.
// Time advances only when all goroutines are blocked.
func TestTimeouts(t *testing.T) {
	ca := newAuthority(t)
	cert := ca.usual(t)
	const timeout = 500 * time.Millisecond
	of := func(kind string, change func(*lb.Check)) lb.Check {
		c := lb.Check{Kind: kind, Timeout: timeout}
		if change != nil {
			change(&c)
		}
		c.SetDefaults()
		return c
	}
	hasTLS := func(c *lb.Check) { c.TLS = true }
	// drips writes one byte every 100 ms after begin.
	drips := func(begin string) func(net.Conn) {
		return func(c net.Conn) {
			defer c.Close()
			if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
				return
			}
			_, err := c.Write([]byte(begin))
			for err == nil {
				time.Sleep(100 * time.Millisecond)
				_, err = c.Write([]byte("1"))
			}
		}
	}
	silent := func(c net.Conn) { waitGone(c); c.Close() }
	cases := []struct {
		name   string
		server func(net.Conn)
		check  lb.Check
		words  string
	}{
		{"TCP, not accepted", nil, of(lb.CheckTCP, nil), "no connection within 500 ms"},
		{"TCP, no bytes", silent, of(lb.CheckTCP, func(c *lb.Check) { c.Expect = "220" }), "connected, but no bytes within 500 ms"},
		{"TCP, drips", drips("2"), of(lb.CheckTCP, func(c *lb.Check) { c.Send, c.Expect = "GET / HTTP/1.0\r\n\r\n", "220" }), `connected, but no "220" within 500 ms`},
		{"HTTP, hangs", silent, of(lb.CheckHTTP, nil), "connected, but no bytes within 500 ms"},
		{"HTTP, drips head", drips("HTTP/1."), of(lb.CheckHTTP, nil), "connected, but no answer within 500 ms"},
		{"HTTP, drips body", drips("HTTP/1.1 200 OK\r\n\r\n"), of(lb.CheckHTTP, func(c *lb.Check) { c.Body = "ok" }), "status 200, but the body did not end within 500 ms"},
		{"TLS, hangs", silent, of(lb.CheckHTTP, hasTLS), "TLS handshake not done within 500 ms"},
		{"TLS, no answer", secured(tlsOf(cert), silent), of(lb.CheckHTTP, hasTLS), "connected, but no bytes within 500 ms"},
		{"TLS, drips body", secured(tlsOf(cert), drips("HTTP/1.1 200 OK\r\n\r\n")), of(lb.CheckHTTP, func(c *lb.Check) { c.TLS, c.Body = true, "ok" }),
			"status 200, but the body did not end within 500 ms"},
		{"HTTP/2, hangs", silent, of(lb.CheckHTTP, func(c *lb.Check) { c.Version = lb.HTTP2 }), "connected, but no answer within 500 ms"},
		{"gRPC, hangs", silent, of(lb.CheckGRPC, nil), "connected, but no answer within 500 ms"},
		{"gRPC, handler hangs", overHTTP2(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), of(lb.CheckGRPC, nil), "connected, but no answer within 500 ms"},
		{"gRPC, begins", overHTTP2(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}), of(lb.CheckGRPC, nil), "connected, but no answer within 500 ms"},
		{"HTTP/2, drips body", overHTTP2(func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte("1"))
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(100 * time.Millisecond):
				case <-r.Context().Done():
				}
			}
		}), of(lb.CheckHTTP, func(c *lb.Check) { c.Version, c.Body = lb.HTTP2, "ok" }), "status 200, but the body did not end within 500 ms"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, got := newAsker(t, Options{})
				var servers sync.WaitGroup
				begin := time.Now()
				a.means.dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
					if c.server == nil {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					client, server := net.Pipe()
					servers.Go(func() { c.server(server) })
					return client, nil
				}
				if err := a.Add(1, probe.Of(c.check, today4, 80)); err != nil {
					t.Fatal(err)
				}
				a.Ask([]uint32{1})
				expectAnswer(t, <-got, probe.Bad, c.words)
				if took := time.Since(begin); took != timeout {
					t.Errorf("answered after %v, not %v", took, timeout)
				}
				servers.Wait()
			})
		})
	}
}

// overHTTP2 serves one connection.
func overHTTP2(handler http.HandlerFunc) func(net.Conn) {
	return func(c net.Conn) {
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		server := &http.Server{Protocols: &protocols, Handler: handler}
		gone := make(chan struct{})
		server.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				close(gone)
			}
		}
		_ = server.Serve(&oneListener{conn: c})
		<-gone
	}
}

// oneListener is a listener with one connection to accept.
type oneListener struct{ conn net.Conn }

func (l *oneListener) Accept() (net.Conn, error) {
	if l.conn == nil {
		return nil, net.ErrClosed
	}
	c := l.conn
	l.conn = nil
	return c, nil
}

func (l *oneListener) Close() error   { return nil }
func (l *oneListener) Addr() net.Addr { return &net.TCPAddr{} }

// TestTimeoutBeginsWithTheTurn checks that a probe that waited for others gets its full timeout.
func TestTimeoutBeginsWithTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, got := newAsker(t, Options{})
		a.network.limit = 1
		a.means.dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		check := lb.Check{Timeout: time.Second}
		check.SetDefaults()
		for id := range uint32(3) {
			if err := a.Add(id, probe.Of(check, today4, 80+uint16(id))); err != nil {
				t.Fatal(err)
			}
		}
		begin := time.Now()
		a.Ask([]uint32{0, 1, 2})
		for id := range uint32(3) {
			answer := <-got
			expectAnswer(t, answer, probe.Bad, "no connection within 1000 ms")
			if took := time.Since(begin); answer.ID != id || took != time.Duration(id+1)*time.Second {
				t.Errorf("answer of %d after %v", answer.ID, took)
			}
		}
	})
}
