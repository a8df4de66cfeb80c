// Package notify wakes goroutines. It is pure.
package notify

// Send wakes the receiver of c without blocking. c must have a buffer of one: a busy receiver is
// then woken once more when it receives again, however often Send was called meanwhile. A channel
// without a buffer loses the notification if no goroutine receives.
func Send(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
