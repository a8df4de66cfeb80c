// Package notify wakes goroutines. It is pure.
package notify

// Send wakes the receiver of c and returns at once. c has a buffer of one: a receiver that is busy is woken once more when it receives
// again, however often Send was called meanwhile. A channel without a buffer loses the notification if nobody receives.
func Send(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
