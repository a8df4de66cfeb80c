package packet

import (
	"time"

	"github.com/shuntlb/shunt/internal/dataplane"
)

// attempts is the maximum number of SYNs of a round; silent servers get one less.
const attempts = dataplane.ProbeAttempts

// retryAt returns when a SYN is sent again, counted from the first one, after `sent` of them;
// false: never. Silent servers get one after a quarter and one after a half of the timeout. A
// server that completed the handshake is probed again later, but more often, because the request or
// its answer may be lost, but may also be slow. With one frame in 1,000 lost, one probe in 10^8
// fails wrongly.
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

// over reports whether a probe of this age without a final answer has failed: its timeout has
// passed, all SYNs were sent and an eighth of the timeout has passed since the last. A machine that
// stood still so makes a probe longer, but its verdict is not wrong. Twice the timeout is the
// limit.
func over(age, last, timeout time.Duration, sent int, connected bool) bool {
	_, more := retryAt(timeout, sent, connected)
	return age >= 2*timeout || age >= timeout && !more && last >= timeout/8
}

// lookAt returns the age at which a probe without an answer is checked next: the older, the less
// often. It is not later than the next attempt or the end.
func lookAt(age, timeout time.Duration, sent int, connected bool) time.Duration {
	next := min(age+max(age/8, tick), timeout)
	if again, ok := retryAt(timeout, sent, connected); ok {
		next = min(next, max(again, age))
	}
	return next
}
