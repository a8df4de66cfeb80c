package manager

import (
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// TestBarriersAreShared checks that each caller gets a barrier that began after its call, and that
// all callers that arrive while one is under way share the next.
func TestBarriersAreShared(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var bs barriers
		var written, reads atomic.Int64
		gate := make(chan struct{})
		read := func() (int64, error) {
			reads.Add(1)
			<-gate
			return written.Load(), nil
		}
		n := rapid.IntRange(1, 50).Draw(rt, "calls")
		var wg sync.WaitGroup
		for range n {
			least := written.Add(1)
			b := bs.join(read)
			wg.Go(func() {
				<-b.done
				if b.revision < least {
					rt.Errorf("a barrier at %d for a call after %d", b.revision, least)
				}
			})
		}
		close(gate)
		wg.Wait()
		if got := reads.Load(); got > 2 {
			rt.Errorf("%d reads for %d calls at the same time: must be at most 2", got, n)
		}
	})
}
