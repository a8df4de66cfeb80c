package loop

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/probe"
)

// stream continues a probe over TCP.
func (l *loop) stream(i uint32, events uint32) {
	s := &l.slots[i]
	if s.phase == connecting {
		if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
			switch err := pendingError(s.fd); err {
			case 0:
			case unix.EACCES, unix.EPERM:
				l.finish(i, silence("forbidden on the way"))
				return
			default:
				l.finish(i, noConnection(err))
				return
			}
		}
		if events&unix.EPOLLOUT == 0 {
			return
		}
		if s.question.asksNothing() {
			l.finish(i, good("connected"))
			return
		}
		l.settle(i)
		if s.phase = talking; s.question.listens() {
			acknowledge(s.fd)
		}
	}
	if s.sent >= 0 && !l.write(i) {
		return
	}
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		l.read(i, events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0)
	}
}

// asksNothing: the probe is complete with the connection.
func (q *question) asksNothing() bool {
	return q.kind == kindTCP && q.before == "" && len(q.expect) == 0
}

// listens: the server is expected to send first.
func (q *question) listens() bool { return q.kind == kindTCP && q.before == "" && len(q.expect) > 0 }

// write sends the rest of the request; false: the probe has ended. slot.sent is -1 after all is
// sent.
func (l *loop) write(i uint32) bool {
	s := &l.slots[i]
	l.request = append(l.request[:0], s.question.before...)
	if s.question.after != "" {
		l.request = append(probe.AppendHost(l.request, s.address), s.question.after...)
	}
	if s.sent < len(l.request) {
		n, err := send(s.fd, l.request[s.sent:])
		switch {
		case err == unix.EAGAIN:
			return true
		case err == unix.EPIPE, err == unix.ECONNRESET:
			// An answer that the server sent before it closed is worth more than the error.
			s.sent = -1
			l.read(i, true)
			return false
		case err != 0:
			l.finish(i, broken(err))
			return false
		}
		s.sent += n
	}
	if s.sent < len(l.request) {
		return true
	}
	if s.sent = -1; s.question.kind == kindTCP && len(s.question.expect) == 0 {
		l.finish(i, good("connected"))
		return false
	}
	return true
}

// read reads until no more bytes are there; all: until the end of the connection, which has
// arrived.
func (l *loop) read(i uint32, all bool) {
	s := &l.slots[i]
	for {
		n, err := receive(s.fd, l.scratch)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return
		case err != 0:
			l.finish(i, broken(err))
			return
		case n == 0:
			l.finish(i, s.closed())
			return
		}
		if f, done := s.judge(l.scratch[:n], &l.words); done {
			l.finish(i, f)
			return
		}
		if n < len(l.scratch) && !all {
			return
		}
	}
}

// judge evaluates more bytes of the answer; done: the finding is final.
func (s *slot) judge(more []byte, words *[1000]string) (f finding, done bool) {
	b, before := more, len(s.got)
	if before > 0 {
		s.got = append(s.got, more...)
		b = s.got
	}
	q := s.question
	if q.kind == kindTCP {
		if bytes.Contains(b[max(0, before-len(q.expect)+1):], q.expect) {
			return good("connected, and answered"), true
		}
		if len(b) > maxAnswer {
			return bad("connected, but no %q in the first %d bytes", q.expect, maxAnswer), true
		}
	} else {
		if before < 64 || bytes.IndexByte(more, '\n') >= 0 {
			status, whole, fault := parseHead(b)
			if fault != "" {
				return bad("connected, but no HTTP answer: %s", fault), true
			}
			if whole {
				if words[status] == "" {
					words[status] = fmt.Sprintf("status %d", status)
				}
				if q.hasStatus(status) {
					return good(words[status]), true
				}
				return finding{verdict: probe.Bad, words: words[status]}, true
			}
		}
		if len(b) > maxAnswer {
			return bad("connected, but no HTTP answer: headers are longer than %d bytes", maxAnswer), true
		}
	}
	if before == 0 {
		s.got = append(s.got, more...)
	}
	return finding{}, false
}

// closed returns the finding for a connection that the server closed.
func (s *slot) closed() finding {
	if s.question.kind == kindTCP && len(s.got) > 0 {
		return bad("connected, but closed without %q", s.question.expect)
	}
	return bad("connected, but closed without an answer")
}

// tooLate returns the finding for a timeout.
func (s *slot) tooLate() finding {
	within := milliseconds(s.question.timeout)
	switch {
	case s.class != tcp4 && s.class != tcp6:
		return silence("no answer within %s", within)
	case s.phase == connecting:
		return silence("no connection within %s", within)
	case len(s.got) == 0:
		return bad("connected, but no bytes within %s", within)
	case s.question.kind == kindTCP:
		return bad("connected, but no %q within %s", s.question.expect, within)
	}
	return bad("connected, but no answer within %s", within)
}
