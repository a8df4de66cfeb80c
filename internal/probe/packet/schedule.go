package packet

import "time"

// attempts are how many SYNs a round has at most.
const attempts = 3

// retryAt is when a SYN is sent again, counted from the first one, after `sent` of them; false: not any more. A server that took the
// connection is asked again only once, late: the request or its answer may be lost, but it may also be slow.
func retryAt(timeout time.Duration, sent int, connected bool) (time.Duration, bool) {
	switch {
	case sent >= attempts || connected && sent >= 2:
		return 0, false
	case sent == 1 && !connected:
		return timeout / 4, true
	}
	return timeout / 2, true
}

// lookAt is when a probe of this age is looked at again that nobody answered: the older, the less often. It is not later than the
// next attempt or the end.
func lookAt(age, timeout time.Duration, sent int, connected bool) time.Duration {
	next := min(age+max(age/8, tick), timeout)
	if again, ok := retryAt(timeout, sent, connected); ok {
		next = min(next, max(again, age))
	}
	return next
}
