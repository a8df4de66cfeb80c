package packet

import (
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
)

// attempts are how many SYNs a round has at most; silent servers get one less.
const attempts = dataplane.ProbeAttempts

// retryAt is when a SYN is sent again, counted from the first one, after `sent` of them; false: not any more. To silent servers: after
// a quarter and a half of the timeout. A server that took a connection is asked again later, but oftener: the request or its
// answer may be lost, but it may also be slow. With one frame in 1,000 lost, one probe in 10^8 fails wrongly.
func retryAt(timeout time.Duration, sent int, connected bool) (time.Duration, bool) {
	switch {
	case !connected && sent == 1:
		return timeout / 4, true
	case !connected && sent == 2, connected && sent == 1:
		return timeout / 2, true
	case connected && sent == 2:
		return timeout / 4 * 3, true
	case connected && sent == 3:
		return timeout / 8 * 7, true
	}
	return 0, false
}

// over says whether a probe of this age without a final answer has failed: its timeout is over, all SYNs were sent and the last one had
// its time. A machine that stood still makes a probe longer, but not its verdict wrong; twice the timeout is the end.
func over(age, last, timeout time.Duration, sent int, connected bool) bool {
	_, more := retryAt(timeout, sent, connected)
	return age >= 2*timeout || age >= timeout && !more && last >= timeout/8
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
