package manager

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/pki"
)

// TestStrangersAreBounded: places are bounded per source, per /48 and in total. The source with the
// most connections gives up places for others, and a closed connection frees its place.
func TestStrangersAreBounded(t *testing.T) {
	c := newLobby(1000, 50)
	open := func(from string) *chair {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		v := &visitor{Conn: a}
		s := c.admit(v, from)
		if s != nil {
			v.moves(s)
		}
		return s
	}
	count := func(n int, from func(i int) string) (admitted int) {
		for i := range n {
			if open(from(i)) != nil {
				admitted++
			}
		}
		return admitted
	}
	if got := count(100, func(int) string { return "192.0.2.1:1" }); got != 50 {
		t.Errorf("%d of one address: must be 50", got)
	}
	if got := count(100, func(i int) string { return fmt.Sprintf("[2001:db8:1:1::%x]:1", i) }); got != 50 {
		t.Errorf("%d of a /64: must be 50", got)
	}
	if got := count(2000, func(i int) string { return fmt.Sprintf("[2001:db8:2:%x::1]:1", i) }); got != 800 {
		t.Errorf("%d of a /48: must be 800", got)
	}
	if got := count(300, func(i int) string { return fmt.Sprintf("198.51.%d.%d:1", i>>8, i&255) }); got != 300 || c.total != 1000 {
		t.Errorf("%d of others, %d in all: must be 300 and 1000", got, c.total)
	}
	if n := c.counts[levels("192.0.2.1:1")[0]]; n != 50 {
		t.Errorf("the /48 had most, and %d of another source are left of 50", n)
	}
	for _, g := range c.groups {
		for s := range g {
			s.conn.Close()
		}
	}
	if c.total != 0 || len(c.counts) != 0 || len(c.groups) != 0 {
		t.Errorf("after all are closed: %d, %v", c.total, c.counts)
	}
}

// TestGuestsOfAListener: connections without a certificate, or with one of a tenant, are closed
// beyond their bound, before and after TLS. Those with a manager's certificate are not counted.
func TestGuestsOfAListener(t *testing.T) {
	ca, err := pki.NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Manager("m1", key, nil, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var crowded atomic.Int64
	l := newHandshakes(raw, &tls.Config{Certificates: []tls.Certificate{*pair}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: ca.Pool()},
		nil, func(net.Addr) { crowded.Add(1) })
	defer l.Close()
	l.guests.each = 3
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go io.Copy(c, c)
		}
	}()
	serves := func(pairs ...tls.Certificate) bool {
		c, err := tls.Dial("tcp", raw.Addr().String(), &tls.Config{RootCAs: ca.Pool(), ServerName: pki.ServerName, Certificates: pairs})
		if err != nil {
			return false
		}
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write([]byte("x")); err != nil {
			return false
		}
		_, err = io.ReadFull(c, make([]byte, 1))
		return err == nil
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.SignPerson(csr, pki.Person{Name: "ann", Role: pki.RoleTenant, Tenant: "shop", ID: "1"}, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ann := tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
	guests := 0
	for i := range 10 {
		if i%2 == 0 && serves() || i%2 == 1 && serves(ann) {
			guests++
		}
	}
	if guests != 3 || crowded.Load() != 7 {
		t.Errorf("%d guests are served, %d refused: must be 3 and 7", guests, crowded.Load())
	}
	for i := range 10 {
		if !serves(*pair) {
			t.Errorf("connection %d with a certificate is refused", i)
		}
	}
	l.arriving.mu.Lock()
	defer l.arriving.mu.Unlock()
	if l.arriving.total != 0 {
		t.Errorf("%d handshakes are over and still counted", l.arriving.total)
	}
}
