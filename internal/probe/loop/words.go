package loop

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/probe"
)

// finding is the outcome of a probe.
type finding struct {
	verdict probe.Verdict
	silent  bool
	// late: the probe timed out.
	late  bool
	words string
}

func good(words string) finding { return finding{verdict: probe.Good, words: words} }

func bad(format string, args ...any) finding {
	return finding{verdict: probe.Bad, words: fmt.Sprintf(format, args...)}
}

// silence returns a bad finding for a probe without any response.
func silence(format string, args ...any) finding {
	return finding{verdict: probe.Bad, silent: true, words: fmt.Sprintf(format, args...)}
}

// void returns the finding for an error of this machine.
func void(err unix.Errno) finding {
	return finding{verdict: probe.Void, words: "not asked: " + err.Error()}
}

// noConnection returns the finding for the error of a connection attempt.
func noConnection(err unix.Errno) finding {
	switch {
	case probe.OwnFault(err):
		return void(err)
	case err == unix.ECONNREFUSED:
		return bad("connection refused")
	case err == unix.ECONNRESET:
		return bad("connected, but reset")
	case err == unix.EHOSTUNREACH:
		return silence("host unreachable")
	case err == unix.ENETUNREACH:
		return silence("network unreachable")
	}
	return bad("no connection: %v", err)
}

// broken returns the finding for an error on an open connection.
func broken(err unix.Errno) finding {
	switch {
	case probe.OwnFault(err):
		return void(err)
	case err == unix.ECONNRESET, err == unix.EPIPE:
		return bad("connected, but reset")
	case err == unix.EHOSTUNREACH:
		return bad("connected, but then host unreachable")
	}
	return bad("connected, but then %v", err)
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
