package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// rivalAfter is how long a handshake may take before the next manager is tried in parallel. A
// frozen manager's kernel still accepts connections. A manager to which all nodes reconnect needs
// seconds, and its handshake is not given up because of that.
const rivalAfter = 2 * time.Second

// reached is a connection to a manager, ready for HTTP/2, or the error.
type reached struct {
	address string
	conn    *tls.Conn
	err     error
}

// reach connects to the current manager or, if that takes long, to the first other manager that
// completes a handshake. That one becomes the current manager.
func (l *loop) reach(ctx context.Context) (*tls.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	order := l.managers.from(l.learnt(), l.o.Clock.Now())
	done := make(chan reached, len(order)) // room for all, which may end after the first
	running := 0
	begin := func() {
		running++
		address := order[running-1]
		go func() {
			conn, err := l.handshake(ctx, address)
			done <- reached{address, conn, err}
		}()
	}
	begin()
	late := l.o.Clock.After(rivalAfter)
	var failed error
	for ended := 0; ended < running; {
		select {
		case r := <-done:
			if r.err == nil {
				l.managers.present = r.address
				go closeOthers(done, running-ended-1)
				return r.conn, nil
			}
			ended++
			failed = errors.Join(failed, fmt.Errorf("%s: %w", r.address, r.err))
		case <-late:
			if running < len(order) {
				begin()
				late = l.o.Clock.After(rivalAfter)
			}
		}
	}
	return nil, failed
}

// closeOthers closes the connections that were established too late.
func closeOthers(done <-chan reached, count int) {
	for range count {
		if r := <-done; r.conn != nil {
			r.conn.Close()
		}
	}
}

// errNotResumed is the error of a handshake for a session that the manager does not have.
var errNotResumed = errors.New("TLS handshake: the session was not resumed")

// handshake dials one manager. It resumes the cached session, or begins a new one.
func (l *loop) handshake(ctx context.Context, address string) (*tls.Conn, error) {
	conn, err := l.handshakeOnce(ctx, address)
	if errors.Is(err, errNotResumed) {
		conn, err = l.handshakeOnce(ctx, address)
	}
	return conn, err
}

func (l *loop) handshakeOnce(ctx context.Context, address string) (*tls.Conn, error) {
	raw, err := dialer(&l.o)(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	// Lock, because a late handshake of the previous stream may still run when the next stream
	// replaces the credentials.
	l.mu.Lock()
	creds := l.creds
	l.mu.Unlock()
	cfg := creds.clientTLS()
	cfg.NextProtos = []string{"h2"}
	resumes := creds.resuming(cfg)
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	if resumes && !conn.ConnectionState().DidResume {
		creds.forget(cfg)
		raw.Close()
		return nil, errNotResumed
	}
	return conn, nil
}

// once returns a dialer that returns conn one time.
func once(conn net.Conn) func(context.Context, string, string) (net.Conn, error) {
	left := make(chan net.Conn, 1)
	left <- conn
	return func(context.Context, string, string) (net.Conn, error) {
		select {
		case c := <-left:
			return c, nil
		default:
			return nil, errors.New("the connection ended")
		}
	}
}

// from returns the current manager and the others after it that are not barred, in the order of a
// round.
func (m *managers) from(learnt []string, now time.Time) []string {
	all := m.list(learnt)
	at := max(slices.Index(all, m.present), 0)
	out := []string{m.present}
	for _, a := range slices.Concat(all[at:], all[:at]) {
		if a != m.present && !m.barred[a].After(now) {
			out = append(out, a)
		}
	}
	return out
}
