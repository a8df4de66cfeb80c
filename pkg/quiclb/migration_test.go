package quiclb_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/shuntlb/shunt/pkg/quiclb"
)

const (
	// within limits every wait of these tests.
	within = time.Minute
	alpn   = "quiclb-test"
	moves  = 20
)

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"test"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// server answers each one-byte request on a stream with its member number. It makes each new client
// prove its address (Retry).
type server struct {
	member    uint16
	generator *quiclb.Generator
	transport *quic.Transport
}

func newServer(t *testing.T, r *router, cert tls.Certificate, c quiclb.Config) *server {
	t.Helper()
	generator, err := quiclb.NewGenerator(quiclb.Configs{c})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	reset := quic.StatelessResetKey(c.ResetKey([]byte("the same over restarts")))
	transport := &quic.Transport{
		Conn:                  conn,
		ConnectionIDGenerator: quiclb.For(generator, quic.ConnectionIDFromBytes),
		StatelessResetKey:     &reset,
		VerifySourceAddress:   func(net.Addr) bool { return true },
	}
	listener, err := transport.Listen(&tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{alpn}}, &quic.Config{MaxIdleTimeout: within})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{member: quiclb.Member(c.ServerID), generator: generator, transport: transport}
	go s.run(listener)
	t.Cleanup(func() {
		transport.Close()
		conn.Close()
	})
	r.serve(s.member, conn.LocalAddr().(*net.UDPAddr).AddrPort())
	return s
}

func (s *server) run(listener *quic.Listener) {
	for {
		conn, err := listener.Accept(context.Background())
		if err != nil {
			return
		}
		go func() {
			stream, err := conn.AcceptStream(context.Background())
			if err != nil {
				return
			}
			var question [1]byte
			for {
				if _, err := io.ReadFull(stream, question[:]); err != nil {
					return
				}
				if err := binary.Write(stream, binary.BigEndian, s.member); err != nil {
					return
				}
			}
		}()
	}
}

// client is a connection with one stream.
type client struct {
	conn   *quic.Conn
	stream *quic.Stream
	path   *quic.Path // current path; nil: the first one
	member uint16
}

// transport opens another socket, and therefore another port.
func transport(t *testing.T) *quic.Transport {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	tr := &quic.Transport{Conn: conn}
	t.Cleanup(func() {
		tr.Close()
		conn.Close()
	})
	return tr
}

func connect(t *testing.T, to *net.UDPAddr) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	conn, err := transport(t).Dial(ctx, to, &tls.Config{InsecureSkipVerify: true, ServerName: "test", NextProtos: []string{alpn}}, &quic.Config{MaxIdleTimeout: within})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseWithError(0, "") })
	stream, err := conn.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	c := &client{conn: conn, stream: stream}
	c.member = c.ask(t)
	return c
}

// ask sends one request and returns the member that answers.
func (c *client) ask(t *testing.T) (member uint16) {
	t.Helper()
	if err := c.stream.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.stream.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if err := binary.Read(c.stream, binary.BigEndian, &member); err != nil {
		t.Fatal(err)
	}
	return member
}

// move continues the connection from another port.
func (c *client) move(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	path, err := c.conn.AddPath(transport(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := path.Probe(ctx); err != nil {
		t.Fatalf("probe the path: %v", err)
	}
	if err := path.Switch(); err != nil {
		t.Fatal(err)
	}
	if c.path != nil {
		if err := c.path.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c.path = path
}

// TestMigration: behind a balancer that decodes CIDs, a connection stays on its server while its
// client moves, while the servers for new clients change, while a key is replaced, and when a NAT
// gives every client another port.
func TestMigration(t *testing.T) {
	for name, scheme := range map[string]quiclb.Scheme{
		"one block": {ID: 3, Format: quiclb.QUICLB, Key: quiclb.Key{1}, ServerIDLength: 3, NonceLength: 13},
		"four-pass": {ID: 3, Format: quiclb.QUICLB, Key: quiclb.Key{1}, ServerIDLength: 2, NonceLength: 9},
		"in clear":  {ID: 3, Format: quiclb.Plain, ServerIDLength: 3, NonceLength: 13},
		"msquic":    {Format: quiclb.Msquic, ServerIDLength: 4, NonceLength: 9},
		"mvfst":     {Format: quiclb.Mvfst, ServerIDLength: 3, NonceLength: 4},
	} {
		t.Run(name, func(t *testing.T) { testMigration(t, scheme) })
	}
}

// config returns the configuration of one server in a scheme.
func config(s quiclb.Scheme, member uint16) quiclb.Config {
	c := quiclb.Config{ID: s.ID, Format: s.Format, Key: s.Key, ServerID: make([]byte, s.ServerIDLength), NonceLength: s.NonceLength, Active: true}
	binary.BigEndian.PutUint16(c.ServerID, member<<4)
	return c
}

func testMigration(t *testing.T, scheme quiclb.Scheme) {
	r := newRouter(t, scheme.Length())
	r.know(t, scheme)
	cert := certificate(t)
	members := []uint16{1, 7, 0xffe}
	var servers []*server
	for _, member := range members {
		servers = append(servers, newServer(t, r, cert, config(scheme, member)))
	}
	r.choose(members...)
	var clients []*client
	for range 4 {
		clients = append(clients, connect(t, r.address()))
	}
	next := scheme
	for i := range moves {
		// Send new clients to one server less than before.
		r.choose(members[i%3], members[(i+1)%3])
		if i == moves/2 && scheme.ID != 0 {
			next.ID = 4
			if scheme.Format == quiclb.QUICLB {
				next.Key = quiclb.Key{2}
			}
			r.know(t, scheme, next)
			for _, s := range servers {
				if err := s.generator.Set(quiclb.Configs{config(scheme, s.member), config(next, s.member)}); err != nil {
					t.Fatal(err)
				}
			}
			clients = append(clients, connect(t, r.address()))
		}
		if i%5 == 4 {
			r.rebind()
			for n, c := range clients {
				if got := c.ask(t); got != c.member {
					t.Fatalf("client %d came to server %d after a NAT gave it another port, was at %d", n, got, c.member)
				}
			}
		}
		for n, c := range clients {
			c.move(t)
			if got := c.ask(t); got != c.member {
				t.Fatalf("client %d came to server %d after move %d, was at %d", n, got, i, c.member)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Logf("%d datagrams by id, %d of them not where their addresses say; %d by addresses", r.byID, r.elsewhere, r.byTuple)
	if r.elsewhere == 0 {
		t.Error("every datagram would have come right without its id: this shows nothing")
	}
	several := 0
	for _, n := range r.initials {
		if n > 1 {
			several++
		}
	}
	if several == 0 {
		t.Error("no client needed two datagrams for its first flight")
	}
}

// TestReset: a server that restarts with the same secret immediately resets the connections of the
// previous process.
func TestReset(t *testing.T) {
	scheme := quiclb.Scheme{ID: 3, Format: quiclb.QUICLB, Key: quiclb.Key{1}, ServerIDLength: 3, NonceLength: 13}
	r := newRouter(t, scheme.Length())
	r.know(t, scheme)
	cert := certificate(t)
	before := newServer(t, r, cert, config(scheme, 7))
	r.choose(7)
	c := connect(t, r.address())
	before.transport.Close()
	newServer(t, r, cert, config(scheme, 7))
	r.rebind()
	if err := c.stream.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	var member uint16
	_, err := c.stream.Write([]byte{0})
	if err == nil {
		err = binary.Read(c.stream, binary.BigEndian, &member)
	}
	if reset := (*quic.StatelessResetError)(nil); !errors.As(err, &reset) {
		t.Errorf("%v, want a stateless reset", err)
	}
}
