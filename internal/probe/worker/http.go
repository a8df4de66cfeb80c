package worker

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/probe"
)

const (
	// maxHead bounds the bytes read of an answer before its body.
	maxHead = 64 << 10
	// maxInterim bounds the 1xx answers before the final one (RFC 9110 section 15.2).
	maxInterim = 8
	// userAgent is the User-Agent of requests, unless the check sets another.
	userAgent = "shunt"
)

// askHTTP makes one request. Redirects are not followed: each is an answer.
func (t *target) askHTTP(ctx context.Context) finding {
	conn, hangUp, failed := t.connect(ctx)
	if failed != nil {
		return *failed
	}
	defer hangUp()
	exchange := t.exchange
	if t.http2() {
		exchange = t.exchange2
	}
	answer, f := exchange(ctx, conn)
	if answer == nil {
		return f
	}
	return t.judge(ctx, answer)
}

// connect connects, with TLS if the check has it.
func (t *target) connect(ctx context.Context) (net.Conn, func(), *finding) {
	conn, hangUp, failed := t.connectTCP(ctx)
	if failed != nil || t.tls == nil {
		return conn, hangUp, failed
	}
	secured, failed := t.secure(ctx, conn)
	if failed != nil {
		hangUp()
		return nil, nil, failed
	}
	return secured, hangUp, nil
}

// request returns the request of the target.
func (t *target) request(ctx context.Context) *http.Request {
	u := *t.url
	u.Scheme, u.Host = t.scheme(), t.host()
	r := &http.Request{
		Method: t.Method, URL: &u, Host: t.host(), ProtoMajor: 1, ProtoMinor: 1, Close: !t.http2(),
		Header: http.Header{"User-Agent": {userAgent}, "Accept": {"*/*"}},
	}
	own := http.Header{}
	for name, value := range t.Headers.All {
		own.Add(name, value)
	}
	for name, values := range own {
		r.Header[name] = values
	}
	return r.WithContext(ctx)
}

func (t *target) scheme() string {
	if t.tls != nil {
		return "https"
	}
	return "http"
}

// exchange sends the request by HTTP/1.1 and returns the answer. Without an answer the finding has
// the reason.
func (t *target) exchange(ctx context.Context, conn net.Conn) (*http.Response, finding) {
	request := t.request(ctx)
	if err := request.Write(conn); err != nil {
		return nil, noAnswer(ctx, err, t.Timeout, "HTTP")
	}
	head := &headReader{r: conn, left: maxHead}
	reader := bufio.NewReader(head)
	for range maxInterim {
		answer, err := http.ReadResponse(reader, request)
		switch {
		case err != nil:
			// For an answer that was cut off, report the cut and not the parse error.
			err = cmp.Or(head.err, err)
			if head.left == maxHead && (isTimeout(err) || ctx.Err() != nil) {
				return nil, bad("connected, but no bytes within %s", milliseconds(t.Timeout))
			}
			return nil, noAnswer(ctx, err, t.Timeout, "HTTP")
		case answer.StatusCode >= 200 || answer.StatusCode == http.StatusSwitchingProtocols:
			// The body has its own limit.
			head.left = math.MaxInt
			return answer, finding{}
		}
	}
	return nil, noAnswer(ctx, fmt.Errorf("more than %d interim answers", maxInterim), t.Timeout, "HTTP")
}

// judge returns the finding for an answer. It reads the body only if the check has a pattern for
// it, and up to a limit, because the body may be endless.
func (t *target) judge(ctx context.Context, answer *http.Response) finding {
	if !t.Status.Has(answer.StatusCode) {
		return bad("status %d", answer.StatusCode)
	}
	status := fmt.Sprintf("status %d", answer.StatusCode)
	if t.body == nil {
		return good(status)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, lb.MaxCheckBody))
	switch {
	case err != nil && (isTimeout(err) || ctx.Err() != nil):
		return bad("%s, but the body did not end within %s", status, milliseconds(t.Timeout))
	case err != nil && probe.OwnFault(err):
		return notAsked("", err)
	case err != nil:
		return bad("%s, but the body broke off", status)
	case !t.body.Match(body):
		return bad(`%s, but the body does not match "%s" in its first %d bytes`, status, clip(t.Body), lb.MaxCheckBody)
	}
	return good(status + ", and the body matches")
}

// clip shortens a configured text, so that the finding around it fits into maxWords.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// headReader reads at most left bytes and keeps the last error.
type headReader struct {
	r    io.Reader
	left int
	err  error
}

// Read implements io.Reader.
func (h *headReader) Read(b []byte) (int, error) {
	if h.left == 0 {
		h.err = fmt.Errorf("headers are longer than %d bytes", maxHead)
		return 0, h.err
	}
	n, err := h.r.Read(b[:min(len(b), h.left)])
	h.left, h.err = h.left-n, err
	return n, err
}
