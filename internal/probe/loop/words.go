package loop

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/probe"
)

// finding is what a probe came to.
type finding struct {
	verdict probe.Verdict
	silent  bool
	// late: the time was over.
	late  bool
	words string
}

func good(words string) finding { return finding{verdict: probe.Good, words: words} }

func bad(format string, args ...any) finding {
	return finding{verdict: probe.Bad, words: fmt.Sprintf(format, args...)}
}

// silence is bad, and nothing came back.
func silence(format string, args ...any) finding {
	return finding{verdict: probe.Bad, silent: true, words: fmt.Sprintf(format, args...)}
}

// void is what this machine could not ask.
func void(err unix.Errno) finding {
	return finding{verdict: probe.Void, words: "not asked: " + err.Error()}
}

// noConnection is what an error of a connection that was not made says.
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

// broken is what an error of a connection that was made says.
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
