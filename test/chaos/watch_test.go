package chaos

import (
	"context"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// gap is the longest time between two events.
type gap struct {
	last    time.Time
	longest time.Duration
	until   time.Time
}

// note records an event.
func (g *gap) note(now time.Time) {
	if d := now.Sub(g.last); d > g.longest {
		g.longest, g.until = d, now
	}
	g.last = now
}

// String returns its length and its end.
func (g gap) String() string {
	return fmt.Sprintf("%s (until %s)", g.longest.Round(time.Millisecond), g.until.Format("15:04:05.000"))
}

// watchLeader repeatedly calls all managers for a response that only a leader gives, until ctx
// ends, and returns the longest time between two responses. The timeout of a call is part of it.
func watchLeader(ctx context.Context) gap {
	const every, timeout = 50 * time.Millisecond, 2 * time.Second
	var mu sync.Mutex
	answers := gap{last: time.Now()}
	var wg sync.WaitGroup
	for _, c := range managers {
		wg.Go(func() {
			for ctx.Err() == nil {
				one, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
				_, err := c.Status(one, connect.NewRequest(&apiv1.StatusRequest{Node: untouched}))
				cancel()
				if err == nil {
					mu.Lock()
					answers.note(time.Now())
					mu.Unlock()
				}
				sleep(ctx, every)
			}
		})
	}
	wg.Wait()
	return answers
}
