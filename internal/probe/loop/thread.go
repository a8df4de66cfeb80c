package loop

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/probe"
	"github.com/shuntlb/shunt/internal/probe/wheel"
)

const (
	// maxStarts is how many probes begin before answers are looked at again.
	maxStarts = 64
	maxEvents = 256
	// wakeEvent is what epoll reports of the loop's own event, echo4Event and echo6Event of the sockets of ICMP.
	wakeEvent  = -1
	echo4Event = -2
	echo6Event = -3
)

// loop is one thread with the probes that it makes.
type loop struct {
	stride   uint32 // number of loops
	limit    int
	answered func([]probe.Answer)
	// sleeps: it waits and has to be poked.
	sleeps, closing atomic.Bool
	starved         counter
	sockets         atomic.Int64

	mu      sync.Mutex
	targets []target // by id/stride
	inbox   []uint32

	// What follows is the thread's alone.
	epoll, wake int
	begin       time.Time
	// queue are those to ask, from head on.
	queue []uint32
	head  int
	slots []slot
	// spare are the slots of each class that no probe uses.
	spare [echo + 1][]uint32
	busy  int
	// full: descriptors ran out; no probe begins before one ends.
	full bool
	// deadlines of slots, in ms since begin.
	deadlines *wheel.Wheel
	answers   []probe.Answer
	events    [maxEvents]unix.EpollEvent
	scratch   []byte
	request   []byte
	to        unix.RawSockaddrInet6
	words     [1000]string // of statuses
	echoes    [2]echoes    // of IPv4 and IPv6
}

func newLoop(o Options, stride uint32, answered func([]probe.Answer)) *loop {
	l := &loop{
		stride: stride, limit: o.InFlight, answered: answered, begin: time.Now(), deadlines: wheel.New(0),
		scratch: make([]byte, maxAnswer+1), epoll: -1, wake: -1,
	}
	var err error
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		l.wake = -1
	}
	return l
}

// poke ends the loop's waiting.
func (l *loop) poke() {
	one := [8]byte{1}
	_, _ = unix.Write(l.wake, one[:])
}

// now is the time since the loop was made.
func (l *loop) now() time.Duration { return time.Since(l.begin) }

// run asks until the loop is closed.
func (l *loop) run(enter func() error, ready chan<- error) {
	runtime.LockOSThread()
	if enter == nil {
		// A thread that went elsewhere ends instead.
		defer runtime.UnlockOSThread()
	}
	defer l.end()
	if err := l.prepare(enter); err != nil {
		ready <- err
		return
	}
	ready <- nil
	for !l.closing.Load() {
		l.take()
		l.startSome()
		l.flush()
		n := l.sleep()
		for _, e := range l.events[:n] {
			l.event(e)
		}
		l.expire()
		l.flush()
	}
}

func (l *loop) prepare(enter func() error) error {
	if l.wake < 0 {
		return os.NewSyscallError("eventfd", unix.EMFILE)
	}
	if enter != nil {
		if err := enter(); err != nil {
			return err
		}
	}
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create", err)
	}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, l.wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: wakeEvent}))
}

// end closes what the loop has open.
func (l *loop) end() {
	for i := range l.slots {
		if l.slots[i].fd >= 0 {
			_ = unix.Close(int(l.slots[i].fd))
		}
	}
	for _, e := range l.echoes {
		if e.fd > 0 {
			_ = unix.Close(e.fd)
		}
	}
	if l.epoll >= 0 {
		_ = unix.Close(l.epoll)
	}
}

// take takes over what is to be asked.
func (l *loop) take() {
	if l.head == len(l.queue) {
		l.queue, l.head = l.queue[:0], 0
	} else if l.head >= 1024 && l.head*2 >= len(l.queue) {
		l.queue, l.head = l.queue[:copy(l.queue, l.queue[l.head:])], 0
	}
	l.mu.Lock()
	l.queue = append(l.queue, l.inbox...)
	l.inbox = l.inbox[:0]
	l.mu.Unlock()
}

// mayStart tells whether a probe waits that may begin.
func (l *loop) mayStart() bool { return l.head < len(l.queue) && l.busy < l.limit && !l.full }

// startSome begins probes.
func (l *loop) startSome() {
	for n := 0; n < maxStarts && l.mayStart(); n++ {
		id := l.queue[l.head]
		l.mu.Lock()
		t := l.targets[id/l.stride]
		l.mu.Unlock()
		if t.question == nil {
			l.answers = append(l.answers, probe.Answer{ID: id, Verdict: probe.Void, Words: "not wanted any more"})
			l.head++
			continue
		}
		err := l.start(id, t)
		if err != 0 && l.busy > 0 {
			// Others have what it needs, and give it back.
			l.starved.Add(1)
			l.full = true
			return
		}
		if l.head++; err != 0 {
			l.starved.Add(1)
			l.answers = append(l.answers, probe.Answer{ID: id, Verdict: probe.Void, Words: void(err).words})
		}
	}
}

// start begins a probe. An error: there is no socket for it.
func (l *loop) start(id uint32, t target) unix.Errno {
	c := classOf(t)
	i, err := l.slot(c, t.address.Addr().Is6())
	if err != 0 {
		return err
	}
	s := &l.slots[i]
	s.id, s.target, s.began, s.sent, s.phase = id, t, l.now(), 0, connecting
	l.busy++
	const ms = time.Millisecond
	l.deadlines.Add(i, uint64((s.began+t.question.timeout+ms-1)/ms))
	switch {
	case c == echo:
		l.sendEcho(i)
	case c == udp4 || c == udp6:
		l.sendDatagram(i)
	default:
		l.connect(i)
	}
	return 0
}

// connect makes the connection of a probe that begins.
func (l *loop) connect(i uint32) {
	s := &l.slots[i]
	size := fill(&l.to, s.address)
	switch err := connect(s.fd, &l.to, size); err {
	case unix.EINPROGRESS, 0:
	default:
		if passes(err) {
			l.starved.Add(1)
		}
		l.finish(i, noConnection(err))
	}
}

// classOf is the class of the socket that a target is asked by.
func classOf(t target) class {
	v6 := class(0)
	if t.address.Addr().Is6() {
		v6 = 1
	}
	switch t.question.kind {
	case kindICMP:
		return echo
	case kindUDP, kindDNS:
		return udp4 + v6
	}
	return tcp4 + v6
}

// slot is one of a class, with an open socket.
func (l *loop) slot(c class, v6 bool) (uint32, unix.Errno) {
	if c == echo {
		if err := l.openEchoesOf(v6); err != 0 {
			return 0, err
		}
	}
	if n := len(l.spare[c]); n > 0 {
		i := l.spare[c][n-1]
		l.spare[c] = l.spare[c][:n-1]
		return i, 0
	}
	if c == echo {
		i := l.newSlot()
		l.slots[i] = slot{fd: -1, class: c}
		return i, 0
	}
	fd, err := open(c)
	if err != 0 && passes(err) && l.closeSpare() {
		fd, err = open(c)
	}
	if err != 0 {
		return 0, err
	}
	i := l.newSlot()
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(i)}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, int(fd), &event); err != nil {
		_ = unix.Close(int(fd))
		l.spare[classes] = append(l.spare[classes], i)
		var errno unix.Errno
		if !errors.As(err, &errno) {
			errno = unix.ENOMEM
		}
		return 0, errno
	}
	l.sockets.Add(1)
	l.slots[i] = slot{fd: fd, class: c}
	return i, 0
}

// newSlot is a slot without a socket. Those that lost theirs are kept as spare of no class.
func (l *loop) newSlot() uint32 {
	if n := len(l.spare[classes]); n > 0 {
		i := l.spare[classes][n-1]
		l.spare[classes] = l.spare[classes][:n-1]
		return i
	}
	l.slots = append(l.slots, slot{fd: -1})
	return uint32(len(l.slots) - 1)
}

// closeSpare closes a socket that no probe uses, so that one of another class can be opened.
func (l *loop) closeSpare() bool {
	for c := range l.spare[:classes] {
		if n := len(l.spare[c]); n > 0 {
			i := l.spare[c][n-1]
			l.spare[c] = l.spare[c][:n-1]
			l.close(i)
			return true
		}
	}
	return false
}

// close closes the socket of a slot that no probe uses and no list has.
func (l *loop) close(i uint32) {
	_ = unix.Close(int(l.slots[i].fd))
	l.slots[i] = slot{fd: -1}
	l.spare[classes] = append(l.spare[classes], i)
	l.sockets.Add(-1)
}

// finish ends a probe.
func (l *loop) finish(i uint32, f finding) {
	s := &l.slots[i]
	l.answers = append(l.answers, probe.Answer{ID: s.id, Verdict: f.verdict, Silent: f.silent, Words: f.words, Took: l.now() - s.began})
	l.deadlines.Remove(i)
	l.busy--
	l.full = false
	s.phase, s.target, s.got = idle, target{}, nil
	clean := true
	switch s.class {
	case echo:
	case tcp4, tcp6:
		clean = disconnect(s.fd) == 0
	default:
		clean = f.verdict == probe.Good && disconnect(s.fd) == 0 && l.clearDatagrams(s.fd)
	}
	if !clean {
		l.close(i)
		return
	}
	l.spare[s.class] = append(l.spare[s.class], i)
}

// flush hands answers over.
func (l *loop) flush() {
	if len(l.answers) > 0 {
		l.answered(l.answers)
		clear(l.answers)
		l.answers = l.answers[:0]
	}
}

// sleep waits for events, a deadline or a poke, unless there is something to do, and returns how many events there are.
func (l *loop) sleep() int {
	if n, _ := wait(l.epoll, l.events[:], 0); n > 0 || l.mayStart() {
		return max(n, 0)
	}
	milliseconds := -1
	if next, some := l.deadlines.Next(); some {
		left := time.Duration(next)*time.Millisecond - l.now()
		milliseconds = int(max(0, (left+time.Millisecond-1)/time.Millisecond))
	}
	l.sleeps.Store(true)
	defer l.sleeps.Store(false)
	l.mu.Lock()
	some := len(l.inbox) > 0
	l.mu.Unlock()
	if some || l.closing.Load() {
		return 0
	}
	n, err := wait(l.epoll, l.events[:], milliseconds)
	if err != 0 {
		return 0
	}
	return n
}

// event takes what epoll reports.
func (l *loop) event(e unix.EpollEvent) {
	if e.Fd == wakeEvent {
		var count [8]byte
		_, _ = unix.Read(l.wake, count[:])
		return
	}
	if e.Fd == echo4Event || e.Fd == echo6Event {
		l.heardEchoes(e.Fd == echo6Event)
		return
	}
	i := uint32(e.Fd)
	switch s := &l.slots[i]; {
	case s.phase == idle:
	case s.class == tcp4 || s.class == tcp6:
		l.stream(i, e.Events)
	default:
		l.datagram(i)
	}
}

// expire ends the probes whose time is over.
func (l *loop) expire() {
	l.deadlines.Advance(uint64(l.now()/time.Millisecond), func(i uint32, _ uint64) { l.finish(i, l.slots[i].tooLate()) })
}
