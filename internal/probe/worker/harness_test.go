package worker

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

// today is the day of all tests.
var today = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// long is a timeout that never expires in a test.
const long = 5 * time.Minute

// authority signs certificates of tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// pem is the certificate to put into a check's CA.
	pem string
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tests"}, NotBefore: today.Add(-900 * day), NotAfter: today.Add(900 * day),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// issue makes a certificate for names and for 127.0.0.1.
func (a *authority) issue(t testing.TB, from, to time.Time, names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: from, NotAfter: to, DNSNames: names,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// usual returns a valid certificate for www.example.
func (a *authority) usual(t testing.TB) tls.Certificate {
	return a.issue(t, today.Add(-day), today.Add(day), "www.example")
}

func listen4(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// serve answers every connection on a loopback address with f.
func serve(t testing.TB, f func(net.Conn)) netip.AddrPort {
	l := listen4(t)
	go accept(l, f)
	return addressOf(l)
}

func accept(l net.Listener, f func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go f(c)
	}
}

func addressOf(l net.Listener) netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }

// secured returns f over TLS.
func secured(config *tls.Config, f func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		s := tls.Server(c, config)
		if s.Handshake() != nil {
			c.Close()
			return
		}
		f(s)
	}
}

// answers reads a request, writes text and closes.
func answers(text string) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = c.Write([]byte(text))
		}
	}
}

// hangs reads a request, writes text and then nothing until the peer closes.
func hangs(text string) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = c.Write([]byte(text))
			waitGone(c)
		}
	}
}

// waitGone reads until the peer closed the connection.
func waitGone(c net.Conn) {
	for b := make([]byte, 4<<10); ; {
		if _, err := c.Read(b); err != nil {
			return
		}
	}
}

// reset resets a TCP connection.
func reset(c net.Conn) {
	if s, ok := c.(*tls.Conn); ok {
		c = s.NetConn()
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

func httpCheck(change func(*lb.Check)) lb.Check {
	c := lb.Check{Kind: lb.CheckHTTP, Timeout: long}
	if change != nil {
		change(&c)
	}
	if c.Interval = time.Second; c.Timeout > c.Interval {
		c.Interval = c.Timeout
	}
	c.SetDefaults()
	return c
}

// newAsker returns a prober at noon of today, with the channel of its answers.
func newAsker(t testing.TB, o Options) (*Asker, <-chan probe.Answer) {
	t.Helper()
	got := make(chan probe.Answer, 4096)
	o.Clock = clock.NewFake(today)
	o.Report = func(batch []probe.Answer) {
		for _, a := range batch {
			got <- a
		}
	}
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a, got
}

// ask makes one probe.
func ask(t testing.TB, c lb.Check, at netip.AddrPort) probe.Answer {
	t.Helper()
	a, got := newAsker(t, Options{})
	if err := a.Add(7, probe.Of(c, at.Addr(), at.Port())); err != nil {
		t.Fatal(err)
	}
	a.Ask([]uint32{7})
	answer := <-got
	if answer.ID != 7 {
		t.Fatalf("answer of %d, asked 7", answer.ID)
	}
	return answer
}

// expectAnswer compares verdict and words.
func expectAnswer(t testing.TB, got probe.Answer, verdict probe.Verdict, words string) {
	t.Helper()
	if got.Verdict != verdict || got.Words != words {
		t.Errorf("got %d %q, want %d %q", got.Verdict, got.Words, verdict, words)
	}
}

func tlsOf(c tls.Certificate) *tls.Config { return &tls.Config{Certificates: []tls.Certificate{c}} }
