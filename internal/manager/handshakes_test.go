package manager

import (
	"crypto/tls"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/pki"
)

// TestTurnsGoToThoseThatBegan checks that a handshake that had a turn does not wait behind those
// that had none.
func TestTurnsGoToThoseThatBegan(t *testing.T) {
	turns := newTurns(1)
	turns.take(false)
	order := make(chan string)
	wait := func(name string, began bool) {
		before := turns.waiting()
		go func() {
			turns.take(began)
			order <- name
		}()
		for turns.waiting() == before {
			time.Sleep(time.Millisecond)
		}
	}
	wait("fresh 1", false)
	wait("fresh 2", false)
	wait("began 1", true)
	wait("began 2", true)
	var got []string
	for range 4 {
		turns.give()
		got = append(got, <-order)
	}
	if want := []string{"began 1", "began 2", "fresh 1", "fresh 2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if turns.give(); turns.free != 1 {
		t.Errorf("%d are free, want 1", turns.free)
	}
}

func (t *turns) waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.began) + len(t.fresh)
}

// TestSilentPeersTakeNoTurn checks that connections that send nothing, half of a hello or no hello
// do not block others although there are more of them than turns, and that all turns are free in
// the end.
func TestSilentPeersTakeNoTurn(t *testing.T) {
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
	l := newHandshakes(raw, &tls.Config{Certificates: []tls.Certificate{*pair}}, nil, nil)
	defer l.Close()
	free := l.turns.free
	for i := range 3 * free {
		c, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// The beginning of a record of 512 bytes.
		c.Write([]byte{22, 3, 1, 2, 0, 1}[:i%3*3])
	}
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.WriteString(c, "served")
			c.Close()
		}
		served <- err
	}()
	roots := ca.Pool()
	c, err := tls.Dial("tcp", raw.Addr().String(), &tls.Config{RootCAs: roots, ServerName: pki.ServerName})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); string(got) != "served" {
		t.Errorf("%q, %v", got, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	for l.turns.freeNow() != free {
		time.Sleep(time.Millisecond)
	}
	l.Close()
	if _, err := l.Accept(); err == nil {
		t.Error("accepts though it is closed")
	}
}

func (t *turns) freeNow() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.free
}
