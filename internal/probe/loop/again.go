package loop

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxAgain is how many connections are tried beside the first of a probe. With 0.1 % of segments lost, which is 0.2 % of
	// handshakes, all three are lost once in 125 million.
	maxAgain = 2
	// minAgain is the shortest from one to the next.
	minAgain = 50 * time.Millisecond
	// kernelAgain is when the kernel sends a lost SYN again (RFC 6298), which no option of a socket makes sooner.
	kernelAgain = time.Second
)

// againAfter is the time after which a connection that is not there is tried once more, within a timeout. The others go on: they may
// only be slow. 0: never, the time is too short, or the kernel's own SYNs come as soon.
func againAfter(timeout time.Duration) time.Duration {
	each := max(minAgain, timeout/(maxAgain+1))
	if each >= min(kernelAgain, timeout) {
		return 0
	}
	return each
}

// connectAgain tries one more connection of a probe, where there is room and a socket for it.
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

// takeOver goes on with a probe over the connection j that was tried again: it is made, or told why not, first.
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

// settle ends all connections of a probe but its own.
func (l *loop) settle(i uint32) {
	s := &l.slots[i]
	for _, j := range s.others[:s.tried] {
		l.drop(j)
	}
	s.tried = 0
}

// drop ends a connection that was tried again.
func (l *loop) drop(j uint32) {
	l.room.leave(true)
	l.free(j, disconnect(l.slots[j].fd) == 0)
}
