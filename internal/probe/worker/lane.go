package worker

// turn is one probe to make.
type turn struct {
	id uint32
	// target is nil if the number was unknown.
	target *target
}

// lane is a queue of probes with the goroutines that make them: none while it is empty, at most
// limit.
type lane struct {
	limit, working int
	queue          []turn
	// next is the index of the first probe in queue that no goroutine took.
	next int
}

// push appends a probe. start: the caller must start another goroutine.
func (l *lane) push(t turn) (start bool) {
	l.queue = append(l.queue, t)
	if l.working == l.limit {
		return false
	}
	l.working++
	return true
}

// pop takes the first probe. Not ok: there is none, or the lane is closed, and the calling
// goroutine must end.
func (l *lane) pop(closed bool) (t turn, ok bool) {
	if closed || l.next == len(l.queue) {
		l.working--
		l.queue, l.next = nil, 0
		return turn{}, false
	}
	t = l.queue[l.next]
	l.queue[l.next] = turn{}
	l.next++
	// Release the taken half of the queue. Each probe is copied at most once.
	if l.next > 64 && 2*l.next >= len(l.queue) {
		l.queue = append([]turn(nil), l.queue[l.next:]...)
		l.next = 0
	}
	return t, true
}
