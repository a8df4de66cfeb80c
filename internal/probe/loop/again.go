package loop

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxAgain is how many connections are tried in addition to the first of a probe. With 0.1 % of
	// segments lost, which is 0.2 % of handshakes, all three are lost once in 125 million.
	maxAgain = 2
	// minAgain is the shortest time from one attempt to the next.
	minAgain = 50 * time.Millisecond
	// kernelAgain is when the kernel retransmits a lost SYN (RFC 6298). No socket option makes it
	// sooner.
	kernelAgain = time.Second
)

// againAfter returns the time after which one more connection is tried for a probe with this
// timeout. The earlier ones stay open, because they may only be slow. 0: never, because the timeout
// is too short, or the kernel's own SYNs are as soon.
func againAfter(timeout time.Duration) time.Duration {
	each := max(minAgain, timeout/(maxAgain+1))
	if each >= min(kernelAgain, timeout) {
		return 0
	}
	return each
}

// connectAgain tries one more connection of a probe, if there is room and a socket for it.
func (l *loop) connectAgain(i uint32) {
	if !l.room.has(true) {
		return
	}
	j, err := l.slot(l.slots[i].class, false)
	if err != 0 {
		return
	}
	s, other := &l.slots[i], &l.slots[j]
	other.of, other.target, other.id, other.phase, other.patient = i, s.target, s.id, trying, true
	s.others[s.tried] = j
	s.tried++
	l.room.enter(true)
	l.again.Add(1)
	size := fill(&l.to, other.address)
	if err := connect(other.fd, &l.to, size); err != unix.EINPROGRESS && err != 0 {
		l.drop(j)
		s.tried--
	}
}

// takeOver continues a probe on its additional connection j, which is the first to be established
// or to fail.
func (l *loop) takeOver(j, events uint32) {
	i := l.slots[j].of
	s, other := &l.slots[i], &l.slots[j]
	s.fd, other.fd = other.fd, s.fd
	for _, k := range [...]uint32{i, j} {
		event := eventOf(k)
		_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_MOD, int(l.slots[k].fd), &event)
	}
	l.stream(i, events)
}

// settle ends all additional connections of a probe.
func (l *loop) settle(i uint32) {
	s := &l.slots[i]
	for _, j := range s.others[:s.tried] {
		l.drop(j)
	}
	s.tried = 0
}

// drop ends an additional connection.
func (l *loop) drop(j uint32) {
	l.room.leave(true)
	l.free(j, disconnect(l.slots[j].fd) == 0)
}
