package agent

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/shuntlb/shunt/internal/clock"
)

// TestSessionsResume: the second connection resumes the first session. A manager that does not have
// the session gets a full handshake, hybrid as the first.
func TestSessionsResume(t *testing.T) {
	ca, pair, creds := testPKI(t)
	server := &tls.Config{
		Certificates: []tls.Certificate{*pair}, NextProtos: []string{"h2"}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	}
	server.SetSessionTicketKeys([][32]byte{{1}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				s := tls.Server(c, server)
				s.Write([]byte("x"))
				s.Read(make([]byte, 1)) // until the client is done
			}()
		}
	}()
	node := &loop{o: Options{Clock: clock.System{}}, creds: creds}
	visit := func() tls.ConnectionState {
		t.Helper()
		conn, err := node.handshake(t.Context(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Read(make([]byte, 1)); err != nil { // the ticket arrives before this
			t.Fatal(err)
		}
		return conn.ConnectionState()
	}
	for i, want := range []struct {
		key     byte
		resumes bool
		curve   tls.CurveID
	}{
		{1, false, tls.X25519MLKEM768},
		{1, true, tls.CurveP256},
		{1, true, tls.CurveP256},
		{2, false, tls.X25519MLKEM768},
		{2, true, tls.CurveP256},
	} {
		server.SetSessionTicketKeys([][32]byte{{want.key}})
		if got := visit(); got.DidResume != want.resumes || got.CurveID != want.curve {
			t.Errorf("connection %d: resumed %v, curve %v; want %v, %v", i, got.DidResume, got.CurveID, want.resumes, want.curve)
		}
	}
}
