package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/shuntlb/shunt/internal/probe"
)

// maxWords bounds the text of an answer, in bytes, because parts of it are from servers and
// programs.
const maxWords = 200

// finding is the outcome of a probe.
type finding struct {
	verdict probe.Verdict
	words   string
	// silent is as in probe.Answer.
	silent bool
	// starved: this machine lacked a resource for the probe.
	starved bool
}

func good(words string) finding { return finding{verdict: probe.Good, words: words} }

func bad(format string, args ...any) finding {
	return finding{verdict: probe.Bad, words: fmt.Sprintf(format, args...)}
}

// silence returns a bad finding for a probe without any response.
func silence(format string, args ...any) finding {
	f := bad(format, args...)
	f.silent = true
	return f
}

func void(words string) finding { return finding{verdict: probe.Void, words: words} }

// notAsked returns a void finding for an error of this machine.
func notAsked(what string, err error) finding {
	f := void("not asked: " + what + cause(err))
	f.starved = probe.Shortage(err)
	return f
}

// clean replaces characters that cannot be printed, line breaks too, and cuts the text to maxWords
// bytes.
func clean(words string) string {
	words = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, words)
	if len(words) <= maxWords {
		return words
	}
	const more = "…"
	return strings.ToValidUTF8(words[:maxWords-len(more)], "") + more
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || os.IsTimeout(err)
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// noConnection returns the finding for the error of a dial.
func noConnection(err error, timeout time.Duration) finding {
	switch {
	case probe.OwnFault(err): // before timeouts: EAGAIN reports itself as one
		return notAsked("", err)
	case isTimeout(err):
		return silence("no connection within %s", milliseconds(timeout))
	case errors.Is(err, syscall.ECONNREFUSED):
		return bad("connection refused")
	case errors.Is(err, syscall.ECONNRESET):
		return bad("connected, but reset")
	case errors.Is(err, syscall.EHOSTUNREACH):
		return silence("host unreachable")
	case errors.Is(err, syscall.ENETUNREACH):
		return silence("network unreachable")
	}
	return bad("no connection: %s", cause(err))
}

// noAnswer returns the finding for an error on an open connection; kind is the kind of the expected
// answer.
func noAnswer(ctx context.Context, err error, timeout time.Duration, kind string) finding {
	switch {
	case isTimeout(err), ctx.Err() != nil:
		return bad("connected, but no answer within %s", milliseconds(timeout))
	case isAlert(err):
		return bad("TLS: %s", strings.TrimPrefix(cause(err), "tls: "))
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return bad("connected, but reset")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return bad("connected, but closed without an answer")
	case probe.OwnFault(err):
		return notAsked("", err)
	}
	return bad("connected, but no %s answer: %s", kind, cause(err))
}

// cause returns the text of the innermost error, without the addresses and paths that net and os
// add.
func cause(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}
