package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"syscall"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// maxAnswer bounds what is read of an answer: status line and headers.
const maxAnswer = 64 << 10

// ask makes one probe.
func ask(ctx context.Context, t Target) Result {
	c := t.Check.Value()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	// FallbackDelay: an address needs no happy eyeballs.
	d := net.Dialer{FallbackDelay: -1, KeepAlive: -1}
	conn, err := d.DialContext(ctx, "tcp", t.Address.String())
	if err != nil {
		return Result{Target: t, Void: ownFault(err), Silent: silent(err), Words: connectWords(err, c.Timeout)}
	}
	defer conn.Close()
	if c.Kind == lb.CheckTCP {
		return Result{Target: t, Good: true, Words: "connected"}
	}
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	// A closed engine does not wait for a server that hangs.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	status, err := get(conn, &c, t.Address)
	if err != nil {
		return Result{Target: t, Words: answerWords(err, c.Timeout)}
	}
	return Result{Target: t, Good: c.Status.Has(status), Words: fmt.Sprintf("status %d", status)}
}

// get sends a GET and returns the status of the answer; redirects are not followed.
func get(conn net.Conn, c *lb.Check, address netip.AddrPort) (int, error) {
	host := c.Host
	if host == "" {
		host = address.String()
	}
	u, err := url.ParseRequestURI(c.Path)
	if err != nil {
		return 0, err
	}
	req := &http.Request{
		Method: c.Method, URL: u, Host: host, Close: true,
		ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"User-Agent": {"shunt"}, "Accept": {"*/*"}},
	}
	if err := req.Write(conn); err != nil {
		return 0, err
	}
	limited := &io.LimitedReader{R: conn, N: maxAnswer}
	answer, err := http.ReadResponse(bufio.NewReader(limited), req)
	if err != nil && limited.N == 0 {
		return 0, fmt.Errorf("headers are longer than %d bytes", maxAnswer)
	}
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, nil
}

// ownFault says whether this machine ran out of file descriptors or memory.
func ownFault(err error) bool {
	for _, own := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}

// silent says whether an attempt to connect failed without a word from the server's machine.
func silent(err error) bool {
	return isTimeout(err) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || os.IsTimeout(err)
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

func connectWords(err error, timeout time.Duration) string {
	switch {
	case isTimeout(err):
		return "no connection within " + milliseconds(timeout)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.EHOSTUNREACH):
		return "host unreachable"
	case errors.Is(err, syscall.ENETUNREACH):
		return "network unreachable"
	}
	return "no connection: " + cause(err)
}

func answerWords(err error, timeout time.Duration) string {
	switch {
	case isTimeout(err):
		return "connected, but no answer within " + milliseconds(timeout)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connected, but closed without an answer"
	}
	return "connected, but no HTTP answer: " + cause(err)
}

// cause is the innermost error without the addresses that net adds.
func cause(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
}
