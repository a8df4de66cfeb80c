package worker

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// today4 is an address that is never probed.
var today4 = netip.MustParseAddr("192.0.2.1")

// endless writes begin, and then more until the connection is closed.
func endless(begin, more string) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		_, err := c.Write([]byte(begin))
		for block := []byte(strings.Repeat(more, 512)); err == nil; {
			_, err = c.Write(block)
		}
	}
}

// TestMisbehavingHTTP checks the text of the finding for each violation of HTTP/1.1.
func TestMisbehavingHTTP(t *testing.T) {
	matches := func(body string) func(*lb.Check) { return func(c *lb.Check) { c.Body = body } }
	ends := func(head, body string) func(net.Conn) {
		return answers(fmt.Sprintf("HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s", head, len(body), body))
	}
	last := strings.Repeat("x", lb.MaxCheckBody-2)
	cases := []struct {
		name    string
		server  func(net.Conn)
		change  func(*lb.Check)
		verdict probe.Verdict
		words   string
	}{
		{"200", ends("", ""), nil, probe.Good, "status 200"},
		{"404", answers("HTTP/1.1 404 X\r\n\r\n"), nil, probe.Bad, "status 404"},
		{"interim", answers("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), nil, probe.Good, "status 200"},
		{"endless interim", endless("", "HTTP/1.1 102 Processing\r\n\r\n"), nil, probe.Bad, "connected, but no HTTP answer: more than 8 interim answers"},
		{"closes", answers(""), nil, probe.Bad, "connected, but closed without an answer"},
		{"ends in the middle", answers("HTTP/1.1 200 OK\r\nX-"), nil, probe.Bad, "connected, but closed without an answer"},
		{"resets", func(c net.Conn) { _, _ = c.Read(make([]byte, 4096)); reset(c) }, nil, probe.Bad, "connected, but reset"},
		{"not http", answers("SSH-2.0-x\r\n\r\n"), nil, probe.Bad, `connected, but no HTTP answer: malformed HTTP response "SSH-2.0-x"`},
		{"binary", answers("\x1b[31m\x00\xff\r\n\r\n"), nil, probe.Bad, `connected, but no HTTP answer: malformed HTTP response "\x1b[31m\x00\xff"`},
		{"endless headers", endless("HTTP/1.1 200 OK\r\n", "X-Filler: 0123456789\r\n"), nil, probe.Bad, "connected, but no HTTP answer: headers are longer than 65536 bytes"},
		{"endless body, nobody looks", endless("HTTP/1.1 200 OK\r\n\r\n", "no "), nil, probe.Good, "status 200"},
		{"endless body", endless("HTTP/1.1 200 OK\r\n\r\n", "no "), matches("ok"), probe.Bad, `status 200, but the body does not match "ok" in its first 65536 bytes`},
		{"endless good body", endless("HTTP/1.1 200 OK\r\n\r\n", "all ok\n"), matches(`(?m)^all ok$`), probe.Good, "status 200, and the body matches"},
		{"endless chunks", endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "3\r\nno \r\n"), matches("ok"), probe.Bad,
			`status 200, but the body does not match "ok" in its first 65536 bytes`},
		{"matches", ends("", `{"up":true}`), matches(`"up":\s*true`), probe.Good, "status 200, and the body matches"},
		{"matches not", ends("", `{"up":false}`), matches(`"up":\s*true`), probe.Bad, `status 200, but the body does not match ""up":\s*true" in its first 65536 bytes`},
		{"matches at the limit", ends("", last+"ok"), matches("ok$"), probe.Good, "status 200, and the body matches"},
		{"matches behind the limit", ends("", last+"xok"), matches("ok$"), probe.Bad, `status 200, but the body does not match "ok$" in its first 65536 bytes`},
		{"status before body", answers("HTTP/1.1 503 X\r\n\r\nok"), matches("ok"), probe.Bad, "status 503"},
		{"body broken off", answers("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok"), matches("ok"), probe.Bad, "status 200, but the body broke off"},
		{"long pattern", ends("", ""), matches(strings.Repeat("y", 300)), probe.Bad,
			`status 200, but the body does not match "` + strings.Repeat("y", 80) + `…" in its first 65536 bytes`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			expectAnswer(t, ask(t, httpCheck(c.change), serve(t, c.server)), c.verdict, c.words)
		})
	}
}

// TestRedirectsAreAnswers checks that a redirect loop is one request.
func TestRedirectsAreAnswers(t *testing.T) {
	var requests atomic.Int32
	at := serve(t, func(c net.Conn) {
		requests.Add(1)
		answers("HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n")(c)
	})
	expectAnswer(t, ask(t, httpCheck(nil), at), probe.Good, "status 302")
	expectAnswer(t, ask(t, httpCheck(func(c *lb.Check) { c.Status = "200-299" }), at), probe.Bad, "status 302")
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests for two probes", n)
	}
}

// TestRequestSaysWhatWasConfigured checks that both versions send the configured request.
func TestRequestSaysWhatWasConfigured(t *testing.T) {
	ca := newAuthority(t)
	cert := ca.usual(t)
	seen := make(chan *http.Request, 1)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	for _, secure := range []bool{false, true} {
		server := &http.Server{Protocols: &protocols, TLSConfig: tlsOf(cert), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen <- r
			fmt.Fprint(w, "fine")
		})}
		l := listen4(t)
		t.Cleanup(func() { server.Close() })
		go func() {
			if secure {
				_ = server.ServeTLS(l, "", "")
			} else {
				_ = server.Serve(l)
			}
		}()
		for _, version := range []string{lb.HTTP1, lb.HTTP2} {
			check := httpCheck(func(c *lb.Check) {
				c.Version, c.TLS, c.Verify, c.CA = version, secure, true, ca.pem
				c.Path, c.Method, c.Host = "/healthz?deep=1", "POST", "www.example"
				c.Headers, c.Body = "X-Probe: a: b\nX-Probe: c\nUser-Agent: me", "^fine$"
			})
			expectAnswer(t, ask(t, check, addressOf(l)), probe.Good, "status 200, and the body matches")
			r := <-seen
			major := 1
			if version == lb.HTTP2 {
				major = 2
			}
			if r.Method != "POST" || r.RequestURI != "/healthz?deep=1" || r.Host != "www.example" || r.ProtoMajor != major || (r.TLS != nil) != secure {
				t.Errorf("got %s %s host %s version %s TLS %v", r.Method, r.RequestURI, r.Host, r.Proto, r.TLS != nil)
			}
			if got := fmt.Sprint(r.Header["X-Probe"], r.Header["User-Agent"], r.Header["Accept"]); got != "[a: b c] [me] [*/*]" {
				t.Errorf("got headers %s", got)
			}
		}
	}
}

// TestMisbehavingHTTP2 checks the text of the finding for each violation of HTTP/2.
func TestMisbehavingHTTP2(t *testing.T) {
	const (
		settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
		goAway   = "\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0b"
	)
	// preface reads the client's preface and replies with text.
	preface := func(text string, then func(net.Conn)) func(net.Conn) {
		return func(c net.Conn) {
			defer c.Close()
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte(text))
			then(c)
		}
	}
	cases := []struct {
		name, words string
		server      func(net.Conn)
	}{
		{"HTTP/1.1", "no HTTP/2", preface("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", waitGone)},
		{"something else", "no HTTP/2", preface("SSH-2.0-OpenSSH_9.2\r\n", waitGone)},
		{"closes", "connected, but closed without an answer", func(c net.Conn) {
			// Bytes left unread would turn the close into a reset.
			r := bufio.NewReader(c)
			_, _ = r.ReadString('\n')
			_ = c.(*net.TCPConn).CloseWrite()
			waitGone(c)
			c.Close()
		}},
		{"resets", "connected, but reset", func(c net.Conn) { _, _ = c.Read(make([]byte, 4096)); reset(c) }},
		{"goes away", "connected, but no HTTP/2 answer: server went away",
			preface(settings+goAway, waitGone)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			expectAnswer(t, ask(t, httpCheck(func(k *lb.Check) { k.Version = lb.HTTP2 }), serve(t, c.server)), probe.Bad, c.words)
		})
	}
}

// TestTCP checks the bytes sent and the search in the answer.
func TestTCP(t *testing.T) {
	banner := func(parts ...string) func(net.Conn) {
		return func(c net.Conn) {
			defer c.Close()
			for _, p := range parts {
				_, _ = c.Write([]byte(p))
			}
			_ = c.(*net.TCPConn).CloseWrite()
			waitGone(c)
		}
	}
	echo := func(c net.Conn) {
		defer c.Close()
		b := make([]byte, 4096)
		n, _ := c.Read(b)
		_, _ = c.Write(b[:n])
		waitGone(c)
	}
	refused := func() netip.AddrPort {
		l := listen4(t)
		defer l.Close()
		return addressOf(l)
	}()
	cases := []struct {
		name, send, expect string
		at                 netip.AddrPort
		verdict            probe.Verdict
		words              string
	}{
		{"refuses", "", "", refused, probe.Bad, "connection refused"},
		{"accepts", "", "", serve(t, waitGone), probe.Good, "connected"},
		{"sends", "PING\r\n", "", serve(t, waitGone), probe.Good, "connected"},
		{"answers", "PING\r\n", "PING", serve(t, echo), probe.Good, "connected, and answered"},
		{"answers bytes that are no text", "hex 00ff80", "hex ff80", serve(t, echo), probe.Good, "connected, and answered"},
		{"answers other bytes", "hex 00ff80", "hex fffe", serve(t, banner("\xff\x80")), probe.Bad, `connected, but closed without "\xff\xfe"`},
		{"answers in pieces", "", "220 mail", serve(t, banner("2", "20", " m", "ail ready\r\n")), probe.Good, "connected, and answered"},
		{"answers else", "", "220 mail", serve(t, banner("554 no\r\n")), probe.Bad, `connected, but closed without "220 mail"`},
		{"closes", "", "220", serve(t, banner()), probe.Bad, "connected, but closed without an answer"},
		{"resets", "x", "220", serve(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)); reset(c) }), probe.Bad, "connected, but reset"},
		{"floods", "GET / HTTP/1.0\r\n\r\n", "ok", serve(t, endless("", "no ")), probe.Bad, `connected, but no "ok" in the first 65536 bytes`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			check := lb.Check{Kind: lb.CheckTCP, Timeout: long, Interval: long}
			for _, part := range []struct {
				said         string
				text, digits *string
			}{{c.send, &check.Send, &check.SendHex}, {c.expect, &check.Expect, &check.ExpectHex}} {
				if digits, hex := strings.CutPrefix(part.said, "hex "); hex {
					*part.digits = digits
				} else {
					*part.text = part.said
				}
			}
			check.SetDefaults()
			expectAnswer(t, ask(t, check, c.at), c.verdict, c.words)
		})
	}
}
