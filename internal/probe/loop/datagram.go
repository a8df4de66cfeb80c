package loop

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/probe"
)

// sendDatagram begins a probe over UDP.
func (l *loop) sendDatagram(i uint32) {
	s := &l.slots[i]
	size := fill(&l.to, s.address)
	if err := connect(s.fd, &l.to, size); err != 0 {
		l.finish(i, noConnection(err))
		return
	}
	s.phase = talking
	l.request = append(l.request[:0], s.question.before...)
	if s.question.kind == kindDNS {
		s.nonce = rand.Uint64()
		binary.BigEndian.PutUint16(l.request, uint16(s.nonce))
	}
	if _, err := send(s.fd, l.request); err != 0 {
		if probe.Shortage(err) {
			l.starved.Add(1)
		}
		l.finish(i, noAnswer(err, false))
	}
}

// datagram continues a probe over UDP.
func (l *loop) datagram(i uint32) {
	s := &l.slots[i]
	for {
		n, err := receive(s.fd, l.scratch)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return
		case err != 0:
			l.finish(i, noAnswer(err, true))
			return
		}
		b := l.scratch[:n]
		if s.question.kind == kindDNS {
			if f, done := s.question.dns.judge(uint16(s.nonce), b); done {
				l.finish(i, f)
				return
			}
			continue
		}
		if bytes.Contains(b, s.question.expect) {
			l.finish(i, good("answered"))
		} else {
			l.finish(i, bad("the answer has no %q", s.question.expect))
		}
		return
	}
}

// clearDatagrams empties a socket for another probe; false: close it.
func (l *loop) clearDatagrams(fd int32) bool {
	for range 16 {
		switch _, err := receive(fd, l.scratch); err {
		case unix.EAGAIN:
			return true
		case 0, unix.EINTR:
		default:
			return false
		}
	}
	return false
}

// noAnswer returns the finding for the error of a datagram; told: the error was received by ICMP.
func noAnswer(err unix.Errno, told bool) finding {
	switch {
	case err == unix.ECONNREFUSED:
		return bad("port unreachable")
	case told && (err == unix.EACCES || err == unix.EPERM):
		return silence("forbidden on the way")
	}
	return noConnection(err)
}
