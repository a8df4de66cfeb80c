package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// exchange2 sends the request by HTTP/2 and returns the answer. Without an answer the finding has
// the reason.
func (t *target) exchange2(ctx context.Context, conn net.Conn) (*http.Response, finding) {
	client, watched, err := t.client2(ctx, conn)
	if err != nil {
		return nil, t.noAnswer2(ctx, err, watched)
	}
	answer, err := client.RoundTrip(t.request(ctx))
	if err != nil {
		return nil, t.noAnswer2(ctx, err, watched)
	}
	return answer, finding{}
}

// client2 returns an HTTP/2 client on a connection, which it does not close. Without TLS the server
// must support HTTP/2 with prior knowledge (RFC 9113 section 3.3).
func (t *target) client2(ctx context.Context, conn net.Conn) (*http.ClientConn, *watchedConn, error) {
	watched := &watchedConn{Conn: conn}
	transport := &http.Transport{
		Protocols: new(http.Protocols), DisableCompression: true, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHead,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return watched, nil },
	}
	// TLS, if any, is already set up. For the transport the connection is one without.
	transport.Protocols.SetUnencryptedHTTP2(true)
	client, err := transport.NewClientConn(ctx, "http", t.address.String())
	return client, watched, err
}

// noAnswer2 returns the finding for the error of an HTTP/2 exchange.
func (t *target) noAnswer2(ctx context.Context, err error, conn *watchedConn) finding {
	if conn.other.Load() {
		return bad("no HTTP/2")
	}
	// The transport's own error may only be a consequence.
	if cut := conn.cut.Load(); cut != nil {
		err = *cut
	} else if strings.Contains(err.Error(), goAway) || strings.Contains(err.Error(), notUsable) {
		err = errors.New("server went away")
	}
	return noAnswer(ctx, err, t.Timeout, "HTTP/2")
}

// Parts of net/http's errors for a server that sent GOAWAY (RFC 9113 section 6.8), after the
// request and before it.
const (
	goAway    = "GOAWAY"
	notUsable = "client conn not usable"
)

// watchedConn checks that the first frame received is SETTINGS (RFC 9113 section 3.4). It keeps the
// first error of reads and writes.
type watchedConn struct {
	net.Conn
	seen  int
	other atomic.Bool
	cut   atomic.Pointer[error]
}

// Read implements net.Conn.
func (c *watchedConn) Read(b []byte) (int, error) {
	const (
		typeAt   = 3
		settings = 4
	)
	n, err := c.Conn.Read(b)
	c.note(err)
	if c.seen <= typeAt && c.seen+n > typeAt {
		c.other.Store(b[typeAt-c.seen] != settings)
	}
	c.seen += n
	return n, err
}

// Write implements net.Conn.
func (c *watchedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.note(err)
	return n, err
}

// note keeps the first error that the transport did not cause itself.
func (c *watchedConn) note(err error) {
	if err == nil || errors.Is(err, net.ErrClosed) {
		return
	}
	if !isTimeout(err) && !isAlert(err) && wasReset(c.Conn) {
		err = syscall.ECONNRESET
	}
	c.cut.CompareAndSwap(nil, &err)
}

// wasReset reports whether the peer reset the connection. The kernel returns ECONNRESET only once,
// either to the reader or to the writer, so the socket's state is read instead.
func wasReset(conn net.Conn) bool {
	if s, ok := conn.(*tls.Conn); ok {
		conn = s.NetConn()
	}
	c, ok := conn.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	closed := false
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		closed = err == nil && info.State == unix.BPF_TCP_CLOSE
	})
	return closed
}
