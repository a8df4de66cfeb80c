package agent

import "context"

// Run keeps the node's handler at the newest plan until ctx ends, and then returns nil. It returns an error only when
// it cannot go on: wrong options, a state directory that cannot be used, or a join that is refused while there is no
// plan to work from. With a stored plan it calls Apply before it speaks to the manager.
//
// Apply is never called concurrently with itself; Status and Trace may be called at any time.
func Run(ctx context.Context, o Options, h Handler) error {
	<-ctx.Done()
	return nil
}
