package worker

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
)

// exchange2 speaks HTTP/2. Without an answer the finding says why.
func (t *target) exchange2(ctx context.Context, conn net.Conn) (*http.Response, finding) {
	client, first, err := t.client2(ctx, conn)
	if err != nil {
		return nil, t.noAnswer2(ctx, err, first)
	}
	answer, err := client.RoundTrip(t.request(ctx))
	if err != nil {
		return nil, t.noAnswer2(ctx, err, first)
	}
	return answer, finding{}
}

// client2 speaks HTTP/2 over a connection, which it does not close. Without TLS the server must know beforehand (RFC 9113
// section 3.3).
func (t *target) client2(ctx context.Context, conn net.Conn) (*http.ClientConn, *firstFrame, error) {
	first := &firstFrame{Conn: conn}
	// A dial of its own would be a second connection.
	once := func(c net.Conn) func(context.Context, string, string) (net.Conn, error) {
		var used bool
		return func(context.Context, string, string) (net.Conn, error) {
			if used {
				return nil, errOneConnection
			}
			used = true
			return c, nil
		}
	}
	transport := &http.Transport{
		Protocols: new(http.Protocols), DisableCompression: true, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHead,
		DialContext: once(first), DialTLSContext: once(conn),
	}
	transport.Protocols.SetHTTP2(t.tls != nil)
	transport.Protocols.SetUnencryptedHTTP2(t.tls == nil)
	client, err := transport.NewClientConn(ctx, t.scheme(), t.address.String())
	return client, first, err
}

// noAnswer2 is what the error of an exchange in HTTP/2 says.
func (t *target) noAnswer2(ctx context.Context, err error, first *firstFrame) finding {
	if first.other.Load() {
		return bad("no HTTP/2")
	}
	return noAnswer(ctx, err, t.Timeout, "HTTP/2")
}

// firstFrame looks at the first frame that comes, which must be one of SETTINGS (RFC 9113 section 3.4).
type firstFrame struct {
	net.Conn
	seen  int
	other atomic.Bool
}

// Read implements net.Conn.
func (f *firstFrame) Read(b []byte) (int, error) {
	const (
		typeAt   = 3
		settings = 4
	)
	n, err := f.Conn.Read(b)
	if f.seen <= typeAt && f.seen+n > typeAt {
		f.other.Store(b[typeAt-f.seen] != settings)
	}
	f.seen += n
	return n, err
}
