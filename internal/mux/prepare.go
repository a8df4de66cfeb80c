package mux

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/shuntlb/shunt/internal/plan"
)

// prepareBatch is the number of endpoints that a worker takes at a time.
const prepareBatch = 16

// prepare builds the rings of all endpoints on all CPUs, with make for each. The caller must pass
// the outcome of the update to obeyed or changed.
func (r *rings) prepare(endpoints []plan.Endpoint) {
	next := make([]nextRings, len(endpoints))
	var begun atomic.Int64
	work := func() {
		for {
			end := int(begun.Add(prepareBatch))
			for i := end - prepareBatch; i < min(end, len(endpoints)); i++ {
				next[i] = r.make(endpoints[i])
			}
			if end >= len(endpoints) {
				return
			}
		}
	}
	var all sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), (len(endpoints)+prepareBatch-1)/prepareBatch) {
		all.Go(work)
	}
	all.Wait()
	r.next = next
}
