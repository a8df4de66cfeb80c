package worker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// dial connects over TCP. Closing the connection resets it, so that it leaves no TIME_WAIT state.
func dial(ctx context.Context, address netip.AddrPort) (net.Conn, error) {
	// FallbackDelay: a single address needs no happy eyeballs.
	d := net.Dialer{FallbackDelay: -1, KeepAlive: -1}
	conn, err := d.DialContext(ctx, "tcp", address.String())
	if err != nil {
		return nil, err
	}
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// connectTCP connects. The connection times out with ctx at the latest.
func (t *target) connectTCP(ctx context.Context) (net.Conn, func(), *finding) {
	conn, err := t.dial(ctx, t.address)
	if err != nil {
		f := noConnection(err, t.Timeout)
		return nil, nil, &f
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	// Close of the prober cancels ctx, and must not wait for a server that hangs.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return conn, func() { stop(); conn.Close() }, nil
}

// askTCP connects, sends the check's bytes and searches the answer for the expected ones.
func (t *target) askTCP(ctx context.Context) finding {
	conn, hangUp, failed := t.connectTCP(ctx)
	if failed != nil {
		return *failed
	}
	defer hangUp()
	if t.Sent() != "" {
		if _, err := io.WriteString(conn, t.Sent()); err != nil {
			return noAnswer(ctx, err, t.Timeout, "TCP")
		}
	}
	if t.Expected() == "" {
		return good("connected")
	}
	return t.expect(ctx, conn)
}

// expect reads until the expected bytes arrived, at most lb.MaxCheckBody bytes.
func (t *target) expect(ctx context.Context, conn io.Reader) finding {
	want := []byte(t.Expected())
	var got []byte
	part := make([]byte, 4<<10)
	for {
		n, err := conn.Read(part[:min(len(part), lb.MaxCheckBody-len(got))])
		// A match may begin in the last len(want)-1 bytes already searched.
		from := max(0, len(got)-len(want)+1)
		got = append(got, part[:n]...)
		switch {
		case bytes.Contains(got[from:], want):
			return good("connected, and answered")
		case err == nil && len(got) < lb.MaxCheckBody:
			continue
		case err == nil:
			return bad("connected, but no %q in the first %d bytes", t.Expected(), lb.MaxCheckBody)
		case isTimeout(err) && len(got) == 0:
			return bad("connected, but no bytes within %s", milliseconds(t.Timeout))
		case isTimeout(err):
			return bad("connected, but no %q within %s", t.Expected(), milliseconds(t.Timeout))
		case errors.Is(err, syscall.ECONNRESET):
			return bad("connected, but reset")
		case errors.Is(err, io.EOF) && len(got) > 0:
			return bad("connected, but closed without %q", t.Expected())
		}
		return noAnswer(ctx, err, t.Timeout, "TCP")
	}
}
