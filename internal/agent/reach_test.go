package agent

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/clock"
)

// TestFrozenManagerIsPassed: a manager whose kernel accepts connections but that does not reply
// delays a node until the next one is tried in parallel. The clock does not advance otherwise.
func TestFrozenManagerIsPassed(t *testing.T) {
	_, pair, creds := testPKI(t)
	frozen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Close()
	good, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*pair}, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	var kept sync.Map
	defer kept.Clear()
	go func() {
		for {
			c, err := good.Accept()
			if err != nil {
				return
			}
			// Keep a reference, because the garbage collector closes unreferenced connections.
			kept.Store(c, true)
			go c.(*tls.Conn).Handshake()
		}
	}()
	fake := clock.NewFake(time.Now())
	l := &loop{o: Options{Clock: fake}, creds: creds, wanted: &folded{}}
	l.managers = managers{name: "mux1", given: []string{frozen.Addr().String(), good.Addr().String()}, present: frozen.Addr().String()}
	got := make(chan *tls.Conn, 1)
	go func() {
		conn, err := l.reach(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- conn
	}()
	held, err := frozen.Accept() // it is tried first
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for fake.Waiting() == 0 {
	}
	fake.Advance(rivalAfter)
	conn := <-got
	if conn == nil {
		t.FailNow()
	}
	defer conn.Close()
	if l.managers.present != good.Addr().String() || conn.ConnectionState().NegotiatedProtocol != "h2" {
		t.Errorf("at %s with %q, want %s", l.managers.present, conn.ConnectionState().NegotiatedProtocol, good.Addr())
	}
	// The losing attempt is given up, possibly before its hello, and its connection ends. Otherwise
	// this would never return.
	_, _ = io.Copy(io.Discard, held)

	l.managers.present = good.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.reach(ctx); err == nil {
		t.Error("reached a manager though the node stops")
	}
}
