package chaos

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// watchLeader asks all managers again and again for what only a leader answers, until ctx ends, and returns the longest time
// between two answers. The bound of a call is part of it.
func watchLeader(ctx context.Context) (longest time.Duration) {
	const every, timeout = 50 * time.Millisecond, 2 * time.Second
	var mu sync.Mutex
	last := time.Now()
	var wg sync.WaitGroup
	for _, c := range managers {
		wg.Go(func() {
			for ctx.Err() == nil {
				one, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
				_, err := c.Status(one, connect.NewRequest(&apiv1.StatusRequest{Node: untouched}))
				cancel()
				if err == nil {
					mu.Lock()
					now := time.Now()
					longest, last = max(longest, now.Sub(last)), now
					mu.Unlock()
				}
				sleep(ctx, every)
			}
		})
	}
	wg.Wait()
	return longest
}
