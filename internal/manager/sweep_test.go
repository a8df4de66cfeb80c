package manager_test

import (
	"sync"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// handClock is moved by the test.
type handClock struct {
	mu    sync.Mutex
	ahead time.Duration
	waits []chan time.Time
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

// After never fires but at advance.
func (c *handClock) After(time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan time.Time, 1)
	c.waits = append(c.waits, ch)
	return ch
}

func (c *handClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
	for _, ch := range c.waits {
		ch <- time.Now().Add(c.ahead)
	}
	c.waits = nil
}

func TestRemovedEndpointsAreForgottenAfterTheirQuarantine(t *testing.T) {
	s, c := store.NewMemory(), &handClock{}
	r := newRigAt(t, s, c)
	r.apply(network(), hostNode(1), web(1))
	r.delete("Service", "web")
	states := func() int {
		snap, err := s.List(t.Context(), "/shunt/endpoints/")
		if err != nil {
			t.Fatal(err)
		}
		return len(snap.KVs)
	}
	if states() != 1 {
		t.Fatal("a removed endpoint must remember its member ids")
	}
	for tries := 0; states() > 0; tries++ {
		c.advance(plan.MemberQuarantine)
		if tries == maxTries {
			t.Fatal("the endpoint is still remembered")
		}
	}
}
