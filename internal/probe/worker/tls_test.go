package worker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// TestMisbehavingTLS checks the text of the finding for each violation of TLS.
func TestMisbehavingTLS(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
	with := func(c tls.Certificate, change ...func(*tls.Config)) func(net.Conn) {
		config := &tls.Config{Certificates: []tls.Certificate{c}, MinVersion: tls.VersionTLS10}
		for _, f := range change {
			f(config)
		}
		return secured(config, answers(ok))
	}
	atMost := func(version uint16) func(*tls.Config) {
		return func(c *tls.Config) { c.MaxVersion = version }
	}
	speaks := func(names ...string) func(*tls.Config) { return func(c *tls.Config) { c.NextProtos = names } }
	raw := func(bytes string) func(net.Conn) {
		return func(c net.Conn) {
			defer c.Close()
			_, _ = c.Read(make([]byte, 16<<10))
			_, _ = c.Write([]byte(bytes))
			waitGone(c)
		}
	}
	// A server hello of TLS 1.0: handshake record, version 3.1, random, no session, a cipher suite,
	// no compression.
	oldHello := "\x16\x03\x01\x00\x2a\x02\x00\x00\x26\x03\x01" + strings.Repeat("r", 32) + "\x00\x00\x2f\x00"
	fine := ca.usual(t)
	demands := func(c *tls.Config) { c.ClientAuth = tls.RequireAnyClientCert }
	many := ca.issue(t, today.Add(-day), today.Add(day), "a.example", "b.example", "c.example", "d.example", "e.example")
	cases := []struct {
		name    string
		server  func(net.Conn)
		change  func(*lb.Check)
		verdict probe.Verdict
		words   string
	}{
		{"fine", with(fine), nil, probe.Good, "status 200"},
		{"1.2", with(fine, atMost(tls.VersionTLS12)), nil, probe.Good, "status 200"},
		{"wrong name", with(ca.issue(t, today.Add(-day), today.Add(day), "other.example")), nil, probe.Bad, "certificate is for other.example, not for www.example"},
		{"many names", with(many), nil, probe.Bad, "certificate is for a.example, b.example, c.example and 2 more, not for www.example"},
		{"no name", with(ca.issue(t, today.Add(-day), today.Add(day))), nil, probe.Bad, "certificate is for no name, not for www.example"},
		{"wrong address", with(fine), func(c *lb.Check) { c.Host = "" }, probe.Bad, "certificate is for www.example, not for 127.0.0.1"},
		{"server name before host", with(fine), func(c *lb.Check) { c.Host, c.ServerName = "else.example", "www.example" }, probe.Good, "status 200"},
		{"host with a port", with(fine), func(c *lb.Check) { c.Host = "www.example:8443" }, probe.Good, "status 200"},
		{"expired", with(ca.issue(t, today.Add(-9*day), today.Add(-2*day-time.Hour), "www.example")), nil, probe.Bad, "certificate expired 2 days ago"},
		{"expired yesterday", with(ca.issue(t, today.Add(-9*day), today.Add(-day-time.Hour), "www.example")), nil, probe.Bad, "certificate expired 1 day ago"},
		{"just expired", with(ca.issue(t, today.Add(-9*day), today.Add(-time.Hour), "www.example")), nil, probe.Bad, "certificate expired less than a day ago"},
		{"not yet valid", with(ca.issue(t, today.Add(3*day), today.Add(9*day), "www.example")), nil, probe.Bad, "certificate is not valid yet, but in 3 days"},
		{"unknown authority", with(stranger.usual(t)), nil, probe.Bad, "certificate is signed by an unknown authority"},
		{"machine's authorities", with(fine), func(c *lb.Check) { c.CA = "" }, probe.Bad, "certificate is signed by an unknown authority"},
		{"not verified", with(stranger.issue(t, today.Add(-9*day), today.Add(-2*day), "other.example")), func(c *lb.Check) { c.Verify = false }, probe.Good, "status 200"},
		{"wants a certificate, 1.2", with(fine, demands, atMost(tls.VersionTLS12)), nil, probe.Bad, "TLS: handshake failure"},
		{"wants a certificate, 1.3", with(fine, demands), nil, probe.Bad, "TLS: certificate required"},
		{"1.1 at most", with(fine, atMost(tls.VersionTLS11)), nil, probe.Bad, "TLS: server speaks no version from 1.2 on"},
		{"hello of 1.0", raw(oldHello), nil, probe.Bad, "TLS: server speaks no version from 1.2 on"},
		{"plaintext", raw("HTTP/1.1 400 Bad Request\r\n\r\n"), nil, probe.Bad, "TLS: server speaks something else"},
		{"closes", func(c net.Conn) { _, _ = c.Read(make([]byte, 16<<10)); c.Close() }, nil, probe.Bad, "connected, but closed during the TLS handshake"},
		{"resets in the handshake", func(c net.Conn) { _, _ = c.Read(make([]byte, 16<<10)); reset(c) }, nil, probe.Bad, "connected, but reset"},
		{"resets after the request", secured(&tls.Config{Certificates: []tls.Certificate{fine}}, func(c net.Conn) { _, _ = c.Read(make([]byte, 4096)); reset(c) }), nil,
			probe.Bad, "connected, but reset"},
		{"ends in the middle", secured(&tls.Config{Certificates: []tls.Certificate{fine}}, answers("HTTP/1.1 2")), nil, probe.Bad, "connected, but closed without an answer"},
		{"503", secured(&tls.Config{Certificates: []tls.Certificate{fine}}, answers("HTTP/1.1 503 X\r\n\r\n")), nil, probe.Bad, "status 503"},
		{"no HTTP/2", with(fine, speaks("http/1.1")), func(c *lb.Check) { c.Version = lb.HTTP2 }, probe.Bad, "no HTTP/2"},
		{"no ALPN", with(fine), func(c *lb.Check) { c.Version = lb.HTTP2 }, probe.Bad, "no HTTP/2"},
		{"no HTTP/1.1", with(fine, speaks("imap")), nil, probe.Bad, "no HTTP/1.1"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			check := httpCheck(func(k *lb.Check) {
				k.TLS, k.Verify, k.Host, k.CA = true, true, "www.example", ca.pem
				if c.change != nil {
					c.change(k)
				}
			})
			expectAnswer(t, ask(t, check, serve(t, c.server)), c.verdict, c.words)
		})
	}
}

// TestExpiredIssuerIsNamed checks that an expired issuer is reported as such, because then renewing
// the server's own certificate does not help.
func TestExpiredIssuerIsNamed(t *testing.T) {
	leaf, issuer := &x509.Certificate{Raw: []byte{1}}, &x509.Certificate{Raw: []byte{2}, NotAfter: today.Add(-40 * day)}
	f := &target{check: &check{means: &newMeans(t).means}}
	got := f.certificateWords(&tls.CertificateVerificationError{
		UnverifiedCertificates: []*x509.Certificate{leaf},
		Err:                    x509.CertificateInvalidError{Cert: issuer, Reason: x509.Expired},
	})
	if want := "certificate of the issuer expired 40 days ago"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func newMeans(t *testing.T) *Asker {
	a, _ := newAsker(t, Options{})
	return a
}

// TestWhatTLSAsksFor checks that a name is sent by SNI, an address is not, and no session is
// resumed.
func TestWhatTLSAsksFor(t *testing.T) {
	ca := newAuthority(t)
	cert := ca.usual(t)
	type hello struct {
		name    string
		resumed bool
	}
	seen := make(chan hello, 10)
	at := serve(t, secured(&tls.Config{
		Certificates: []tls.Certificate{cert},
	}, func(c net.Conn) {
		s := c.(*tls.Conn).ConnectionState()
		seen <- hello{s.ServerName, s.DidResume}
		answers("HTTP/1.1 204 No Content\r\n\r\n")(c)
	}))
	for _, c := range []struct{ host, name, want string }{
		{"www.example", "", "www.example"}, {"www.example:443", "", "www.example"}, {"", "www.example", "www.example"},
		{"", "", ""}, {"[::1]", "", ""}, {"[::1]:80", "", ""},
	} {
		a, got := newAsker(t, Options{})
		check := httpCheck(func(k *lb.Check) { k.TLS, k.Host, k.ServerName = true, c.host, c.name })
		if err := a.Add(1, probe.Of(check, at.Addr(), at.Port())); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			a.Ask([]uint32{1})
			expectAnswer(t, <-got, probe.Good, "status 204")
			if h := <-seen; h != (hello{name: c.want}) {
				t.Errorf("host %q, server name %q: asked for %+v", c.host, c.name, h)
			}
		}
	}
}

// TestConnectionsAreReset checks that a probe leaves no connection state on either side.
func TestConnectionsAreReset(t *testing.T) {
	ca := newAuthority(t)
	cert := ca.usual(t)
	end := make(chan error, 1)
	lingers := func(c net.Conn) {
		defer c.Close()
		b := make([]byte, 4096)
		_, _ = c.Read(b)
		_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
		_, err := c.Read(b)
		end <- err
	}
	for _, secure := range []bool{false, true} {
		server := lingers
		if secure {
			server = secured(&tls.Config{Certificates: []tls.Certificate{cert}}, lingers)
		}
		expectAnswer(t, ask(t, httpCheck(func(c *lb.Check) { c.TLS = secure }), serve(t, server)), probe.Good, "status 200")
		if err := <-end; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("TLS %v: the connection ended with %v", secure, err)
		}
	}
}

func TestCAIsChecked(t *testing.T) {
	a, _ := newAsker(t, Options{})
	key := "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
	for _, c := range []struct{ ca, want string }{
		{"nothing", "ca: must hold a certificate in PEM"},
		{key, "ca: block 1 is a PRIVATE KEY: must be a CERTIFICATE"},
		{newAuthority(t).pem + key, "ca: block 2 is a PRIVATE KEY: must be a CERTIFICATE"},
		{"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "ca: certificate 1: x509: malformed certificate"},
	} {
		check := httpCheck(func(k *lb.Check) { k.TLS, k.Verify, k.CA = true, true, c.ca })
		if err := a.Add(1, probe.Of(check, today4, 443)); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}
