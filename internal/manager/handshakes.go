package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/pki"
)

const (
	// handshakeTimeout bounds a TLS handshake from the first byte on, without the time in which it
	// waits for its turn.
	handshakeTimeout = 10 * time.Second
	// tooLate is the wait for a first turn after which a connection is closed, because its peer,
	// which waits for 20 seconds, would close it in the middle, and the computation would be
	// wasted. Without tooLate a manager that is late by more would serve no client any more.
	tooLate = 12 * time.Second
)

// errTooLate ends connections that waited too long.
var errTooLate = errors.New("too many connections came at once")

// handshakes is a listener that returns connections after their TLS handshake. At most one
// handshake per CPU computes at a time, and those that have begun go first. When thousands of nodes
// reconnect together, the first are served while others still wait, instead of all being late
// together, and other work of the process does not wait behind all of them. A handshake that waits
// for its peer holds no turn.
type handshakes struct {
	net.Listener
	cfg   *tls.Config
	turns *turns
	ready chan net.Conn
	// refused is called for invalid client certificates.
	refused func(from net.Addr, err *tls.CertificateVerificationError)
	// arriving bounds the connections whose handshake is not over, guests those of people without
	// an administrator's certificate afterwards.
	arriving, guests *lobby
	// crowded is called for connections that got no place.
	crowded func(from net.Addr)

	ctx context.Context
	end context.CancelCauseFunc
}

func newHandshakes(l net.Listener, cfg *tls.Config, refused func(net.Addr, *tls.CertificateVerificationError), crowded func(net.Addr)) *handshakes {
	h := &handshakes{Listener: l, cfg: cfg, turns: newTurns(runtime.GOMAXPROCS(0)), ready: make(chan net.Conn), refused: refused}
	h.arriving, h.guests, h.crowded = newLobby(maxArriving, 0), newLobby(maxGuests, maxGuestsOf), crowded
	h.ctx, h.end = context.WithCancelCause(context.Background())
	go h.acceptAll()
	return h
}

// acceptAll accepts connections until the listener fails.
func (h *handshakes) acceptAll() {
	var pause time.Duration
	for {
		raw, err := h.Listener.Accept()
		if ne, ok := err.(net.Error); ok && ne.Temporary() { //nolint:staticcheck // out of files, as net/http has it
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-h.ctx.Done():
			}
			continue
		}
		if err != nil {
			h.end(err)
			return
		}
		pause = 0
		v := &visitor{Conn: raw}
		seat := h.arriving.admit(v, raw.RemoteAddr().String())
		if seat == nil {
			raw.Close()
			h.crowded(raw.RemoteAddr())
			continue
		}
		v.moves(seat)
		go h.shake(v)
	}
}

// shake runs a handshake and passes the connection on even if the handshake failed, because the
// server reports the error to the client.
func (h *handshakes) shake(raw *visitor) {
	turn := &turnConn{Conn: raw, turns: h.turns}
	conn := tls.Server(turn, h.cfg)
	err := conn.HandshakeContext(h.ctx)
	turn.over()
	if bad := new(tls.CertificateVerificationError); errors.As(err, &bad) {
		h.refused(raw.RemoteAddr(), bad)
	}
	if err == nil && !h.seated(raw, conn) {
		h.crowded(raw.RemoteAddr())
		conn.Close()
		return
	}
	select {
	case h.ready <- conn:
	case <-h.ctx.Done():
		conn.Close()
	}
}

// seated moves a connection whose handshake succeeded out of arriving. The connection of a node, a
// manager or an administrator needs no other place; any other gets one among the guests. It returns
// false if there is none.
func (h *handshakes) seated(raw *visitor, conn *tls.Conn) bool {
	if certs := conn.ConnectionState().PeerCertificates; len(certs) > 0 {
		if _, role := pki.Identity(certs[0]); role != pki.RoleTenant && role != pki.RoleViewer {
			raw.moves(nil)
			return true
		}
	}
	seat := h.guests.admit(raw, raw.RemoteAddr().String())
	raw.moves(seat)
	return seat != nil
}

// Accept implements net.Listener.
func (h *handshakes) Accept() (net.Conn, error) {
	select {
	case conn := <-h.ready:
		return conn, nil
	case <-h.ctx.Done():
		return nil, context.Cause(h.ctx)
	}
}

// Close implements net.Listener.
func (h *handshakes) Close() error {
	err := h.Listener.Close()
	h.end(net.ErrClosed)
	return err
}

// turnConn is a connection that holds a turn whenever it does not wait for the peer, until over is
// called. Until then one goroutine reads.
type turnConn struct {
	net.Conn
	turns *turns
	// had: something was read. has: it holds a turn. done: it needs no more turns.
	had, has, done bool
}

// Read implements net.Conn.
func (c *turnConn) Read(p []byte) (int, error) {
	if c.done {
		return c.Conn.Read(p)
	}
	if c.has {
		c.turns.give()
		c.has = false
	}
	if !c.had {
		c.Conn.SetDeadline(time.Now().Add(handshakeTimeout))
	}
	n, err := c.Conn.Read(p)
	if err != nil {
		return n, err
	}
	came := time.Now()
	c.turns.take(c.had)
	if c.has = true; !c.had {
		now := time.Now()
		if now.Sub(came) > tooLate {
			return 0, errTooLate
		}
		// The peer did not cause the wait for the turn.
		c.Conn.SetDeadline(now.Add(handshakeTimeout))
		c.had = true
	}
	return n, nil
}

// over ends the use of turns. It is called before the connection is used by others.
func (c *turnConn) over() {
	if c.has {
		c.turns.give()
	}
	c.has, c.done = false, true
	c.Conn.SetDeadline(time.Time{})
}

// turns bounds the handshakes that compute concurrently. Turns are granted in order of request, to
// handshakes that have begun before others.
type turns struct {
	mu   sync.Mutex
	free int
	// began and fresh are the waiting handshakes that had a turn before, and that had none. Closing
	// the channel grants a turn.
	began, fresh []chan struct{}
}

func newTurns(count int) *turns { return &turns{free: count} }

// take waits for a turn.
func (t *turns) take(began bool) {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return
	}
	mine := make(chan struct{})
	if began {
		t.began = append(t.began, mine)
	} else {
		t.fresh = append(t.fresh, mine)
	}
	t.mu.Unlock()
	<-mine
}

// give ends a turn.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, queue := range []*[]chan struct{}{&t.began, &t.fresh} {
		if len(*queue) > 0 {
			next := (*queue)[0]
			*queue = (*queue)[1:]
			close(next)
			return
		}
	}
	t.free++
}
