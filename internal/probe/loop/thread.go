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
	// maxStarts bounds the probes that begin before events are read again; maxLate bounds,
	// separately, those of targets whose last ones timed out.
	maxStarts = 64
	maxLate   = 16
	maxEvents = 256
	// wakeEvent is the epoll data of the loop's eventfd, echo4Event and echo6Event those of the
	// ICMP sockets.
	wakeEvent  = -1
	echo4Event = -2
	echo6Event = -3
)

// loop is one thread with its probes.
type loop struct {
	stride   uint32 // number of loops
	answered func([]probe.Answer)
	// sleeps: the thread waits and has to be poked.
	sleeps, closing          atomic.Bool
	starved, again, unproven counter
	sockets                  atomic.Int64

	mu      sync.Mutex
	targets []target // by id/stride
	late    marks    // targets whose last probe timed out, by id/stride
	inbox   []uint32

	// Only the thread uses the fields below.
	epoll, wake int
	begin       time.Time
	// queue has the targets to probe, lateQueue those whose last probe timed out.
	queue, lateQueue queue
	room             room
	slots            []slot
	// spare are the unused slots of each class.
	spare [echo + 1][]uint32
	// full: descriptors ran out. No probe begins before one ends.
	full bool
	// deadlines of slots, in ms since begin.
	deadlines *wheel.Wheel
	answers   []probe.Answer
	events    [maxEvents]unix.EpollEvent
	scratch   []byte
	request   []byte
	to        unix.RawSockaddrInet6
	words     [1000]string // by HTTP status
	echoes    [2]echoes    // IPv4 and IPv6
}

func newLoop(o Options, stride uint32, answered func([]probe.Answer)) *loop {
	l := &loop{
		stride: stride, room: newRoom(&o), answered: answered, begin: time.Now(), deadlines: wheel.New(0),
		scratch: make([]byte, maxAnswer+1), epoll: -1, wake: -1,
	}
	var err error
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		l.wake = -1
	}
	return l
}

// poke wakes the loop.
func (l *loop) poke() {
	one := [8]byte{1}
	_, _ = unix.Write(l.wake, one[:])
}

// now returns the time since the loop was made.
func (l *loop) now() time.Duration { return time.Since(l.begin) }

// run makes probes until the loop is closed.
func (l *loop) run(enter func() error, ready chan<- error) {
	runtime.LockOSThread()
	if enter == nil {
		// A thread in another namespace exits instead.
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
		// Expire only after all events are read, because an answer that arrived in time must not
		// count as late.
		if n < len(l.events) {
			l.expire()
		}
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

// end closes the loop's descriptors.
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

// take moves the numbers in the inbox to the queues.
func (l *loop) take() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.inbox {
		if !l.late.has(id / l.stride) {
			l.queue.push(id)
			continue
		}
		if l.lateQueue.push(id); l.room.patient+l.lateQueue.len() > l.room.patientMost {
			l.starved.Add(1)
		}
	}
	l.inbox = l.inbox[:0]
}

// mayStart reports whether a waiting probe may begin.
func (l *loop) mayStart() bool {
	return !l.full && (l.queue.len() > 0 && l.room.has(false) || l.lateQueue.len() > 0 && l.room.has(true))
}

// startSome begins probes of both queues.
func (l *loop) startSome() {
	l.startFrom(&l.queue, false, maxStarts)
	l.startFrom(&l.lateQueue, true, maxLate)
}

// startFrom begins at most most probes of a queue; late: it is the queue of targets whose last
// probes timed out.
func (l *loop) startFrom(q *queue, late bool, most int) {
	for n := 0; n < most && q.len() > 0 && l.room.has(late) && !l.full; n++ {
		id := q.first()
		l.mu.Lock()
		t := l.targets[id/l.stride]
		l.mu.Unlock()
		if t.question == nil {
			l.answers = append(l.answers, probe.Answer{ID: id, Verdict: probe.Void, Words: "not wanted any more"})
			q.pop()
			continue
		}
		err := l.start(id, t, late)
		if err != 0 && l.room.busy() > 0 {
			// Other probes hold the resource, and free it when they end.
			l.starved.Add(1)
			l.full = true
			return
		}
		if q.pop(); err != 0 {
			l.starved.Add(1)
			l.answers = append(l.answers, probe.Answer{ID: id, Verdict: probe.Void, Words: void(err).words})
		}
	}
}

// start begins a probe; late: the target's last one timed out. It returns an error if there is no
// socket for it.
func (l *loop) start(id uint32, t target, late bool) unix.Errno {
	c := classOf(t)
	i, err := l.slot(c, t.address.Addr().Is6())
	if err != 0 {
		return err
	}
	s := &l.slots[i]
	s.id, s.target, s.began, s.sent, s.phase = id, t, l.now(), 0, connecting
	s.patient, s.wasLate, s.impatient, s.triedAt = late, late, s.began+patience, s.began
	l.room.enter(late)
	l.arm(i)
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

// connect begins the connection of a new probe.
func (l *loop) connect(i uint32) {
	s := &l.slots[i]
	size := fill(&l.to, s.address)
	switch err := connect(s.fd, &l.to, size); err {
	case unix.EINPROGRESS, 0:
	default:
		if probe.Shortage(err) {
			l.starved.Add(1)
		}
		l.finish(i, noConnection(err))
	}
}

// classOf returns the class of socket for a target.
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

// slot returns a slot of a class, with an open socket.
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
	if err != 0 && probe.Shortage(err) && l.closeSpare() {
		fd, err = open(c)
	}
	if err != 0 {
		return 0, err
	}
	i := l.newSlot()
	event := eventOf(i)
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

// eventOf returns the epoll registration of a slot's socket.
func eventOf(i uint32) unix.EpollEvent {
	return unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(i)}
}

// newSlot returns a slot without a socket. Slots that lost their sockets are spare in the list of
// no class.
func (l *loop) newSlot() uint32 {
	if n := len(l.spare[classes]); n > 0 {
		i := l.spare[classes][n-1]
		l.spare[classes] = l.spare[classes][:n-1]
		return i
	}
	l.slots = append(l.slots, slot{fd: -1})
	return uint32(len(l.slots) - 1)
}

// closeSpare closes an unused socket, so that one of another class can be opened.
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

// close closes the socket of a slot that is unused and in no list.
func (l *loop) close(i uint32) {
	_ = unix.Close(int(l.slots[i].fd))
	l.slots[i] = slot{fd: -1}
	l.spare[classes] = append(l.spare[classes], i)
	l.sockets.Add(-1)
}

// finish ends a probe and queues its answer.
func (l *loop) finish(i uint32, f finding) {
	l.settle(i)
	s := &l.slots[i]
	l.answers = append(l.answers, probe.Answer{ID: s.id, Verdict: f.verdict, Silent: f.silent, Words: f.words, Took: l.now() - s.began})
	if s.wasLate != f.late {
		l.mu.Lock()
		l.late.set(s.id/l.stride, f.late)
		l.mu.Unlock()
	}
	l.deadlines.Remove(i)
	l.room.leave(s.patient)
	clean := true
	switch s.class {
	case echo:
	case tcp4, tcp6:
		clean = disconnect(s.fd) == 0
	default:
		clean = f.verdict == probe.Good && disconnect(s.fd) == 0 && l.clearDatagrams(s.fd)
	}
	l.free(i, clean)
}

// free makes a slot unused; clean: its socket can be reused.
func (l *loop) free(i uint32, clean bool) {
	s := &l.slots[i]
	l.full = false
	s.phase, s.target, s.got = idle, target{}, nil
	// Do not keep all sockets that many silent servers took.
	if !clean || s.class != echo && len(l.spare[s.class]) >= l.room.promptMost {
		l.close(i)
		return
	}
	l.spare[s.class] = append(l.spare[s.class], i)
}

// flush delivers the answers.
func (l *loop) flush() {
	if len(l.answers) > 0 {
		l.answered(l.answers)
		clear(l.answers)
		l.answers = l.answers[:0]
	}
}

// sleep waits for events, a deadline or a poke, unless there is work to do. It returns the number
// of events.
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

// event handles one epoll event.
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
	case s.phase == trying:
		l.takeOver(i, e.Events)
	case s.class == tcp4 || s.class == tcp6:
		l.stream(i, e.Events)
	default:
		l.datagram(i)
	}
}

// arm sets the next deadline of a probe.
func (l *loop) arm(i uint32) {
	s := &l.slots[i]
	next := s.began + s.question.timeout
	if !s.patient {
		next = min(next, s.impatient)
	}
	if s.phase == connecting && s.tried < maxAgain && s.question.again > 0 {
		next = min(next, s.triedAt+s.question.again)
	}
	const ms = time.Millisecond
	l.deadlines.Add(i, uint64((next+ms-1)/ms))
}

// expire handles the probes whose deadline has passed.
func (l *loop) expire() {
	now := l.now()
	l.deadlines.Advance(uint64(now/time.Millisecond), func(i uint32, _ uint64) { l.due(i, now) })
}

// due handles one probe at its deadline: it ends the probe, moves it to the patient ones, or tries
// another connection.
func (l *loop) due(i uint32, now time.Duration) {
	s := &l.slots[i]
	if now >= s.began+s.question.timeout {
		f := s.tooLate()
		f.late = true
		l.finish(i, f)
		return
	}
	if !s.patient && now >= s.impatient {
		if s.patient = l.room.change(); !s.patient {
			if s.impatient == s.began+patience {
				l.starved.Add(1)
			}
			s.impatient = now + patience
		}
	}
	if s.phase == connecting && s.tried < maxAgain && s.question.again > 0 && now >= s.triedAt+s.question.again {
		s.triedAt = now
		l.connectAgain(i)
	}
	l.arm(i)
}
