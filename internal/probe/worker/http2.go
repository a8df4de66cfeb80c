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

// exchange2 speaks HTTP/2. Without an answer the finding says why.
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

// client2 speaks HTTP/2 over a connection, which it does not close. Without TLS the server must know beforehand (RFC 9113
// section 3.3).
func (t *target) client2(ctx context.Context, conn net.Conn) (*http.ClientConn, *watchedConn, error) {
	watched := &watchedConn{Conn: conn}
	transport := &http.Transport{
		Protocols: new(http.Protocols), DisableCompression: true, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHead,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return watched, nil },
	}
	// TLS, if any, is made: for the transport the connection is one without.
	transport.Protocols.SetUnencryptedHTTP2(true)
	client, err := transport.NewClientConn(ctx, "http", t.address.String())
	return client, watched, err
}

// noAnswer2 is what the error of an exchange in HTTP/2 says.
func (t *target) noAnswer2(ctx context.Context, err error, conn *watchedConn) finding {
	if conn.other.Load() {
		return bad("no HTTP/2")
	}
	// The transport's own error may be no more than that it could not go on.
	if cut := conn.cut.Load(); cut != nil {
		err = *cut
	} else if strings.Contains(err.Error(), goAway) || strings.Contains(err.Error(), notUsable) {
		err = errors.New("server went away")
	}
	return noAnswer(ctx, err, t.Timeout, "HTTP/2")
}

// What net/http says of a server that sent GOAWAY (RFC 9113 section 6.8), after the request and before it.
const (
	goAway    = "GOAWAY"
	notUsable = "client conn not usable"
)

// watchedConn looks at the first frame that comes, which must be one of SETTINGS (RFC 9113 section 3.4), and keeps why there
// came or went no more.
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

// note keeps the first error that is not the transport's own doing.
func (c *watchedConn) note(err error) {
	if err == nil || errors.Is(err, net.ErrClosed) {
		return
	}
	if !isTimeout(err) && !isAlert(err) && wasReset(c.Conn) {
		err = syscall.ECONNRESET
	}
	c.cut.CompareAndSwap(nil, &err)
}

// wasReset tells whether the other side broke the connection off. Of a reader and a writer at once the kernel tells it to one.
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
