package manager_test

import (
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// TestNodeCalledAsAnAdministrator: the deletion of a node concerns nodes only.
func TestNodeCalledAsAnAdministrator(t *testing.T) {
	r := newRig(t, store.NewMemory())
	n := muxNode(1)
	n.Name = "admin"
	r.apply(network(), n)
	r.delete("Node", "admin")
	r.apply(muxNode(1))
}

// TestNodeDeletedAndMadeAgainAtOnce: the stream of the deleted node ends, although the next node
// has its name and the stream saw both changes as one.
func TestNodeDeletedAndMadeAgainAtOnce(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	// The host does not apply the change, so that the mux receives it late.
	host := r.raw("host1", "host")
	receive(t, host)
	mux := r.raw("mux1", "mux")
	receive(t, mux)
	r.delete("Node", "mux1")
	r.apply(muxNode(1))
	for {
		up, err := mux.Receive()
		if connect.CodeOf(err) == connect.CodePermissionDenied {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(up.Upsert) > 0 {
			t.Fatalf("a deleted node got %s", keys(up))
		}
	}
}

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

// After returns a channel that fires only in advance.
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

// TestDeletionWithAClockThatMoves: a certificate from a later clock does not outlive its node, and
// a deletion at a later clock does not refuse the next node.
func TestDeletionWithAClockThatMoves(t *testing.T) {
	c := &handClock{}
	r := newRigAt(t, store.NewMemory(), c)
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	c.advance(2 * time.Minute)
	mux := r.join("mux1", "mux")
	mux.until("its plan", func(p plan.Plan) bool { return len(p.Endpoints) == 1 })
	c.advance(-2 * time.Minute)
	r.delete("Node", "mux1")
	mux.until("an empty plan", func(p plan.Plan) bool { return p.Node.Name == "" })
	r.statusGone("mux1")
	r.apply(muxNode(1))
	again := r.join("mux1", "mux")
	again.until("the plan after joining again", func(p plan.Plan) bool { return len(p.Endpoints) == 1 })
}
