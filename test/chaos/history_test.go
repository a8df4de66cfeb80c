package chaos

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// history collects the calls of several clients and their promised results.
type history struct {
	t     *testing.T
	begin time.Time
	// keyLife is how long a key is in use.
	keyLife time.Duration

	mu    sync.Mutex
	ops   []porcupine.Operation
	notes map[string]note
	// revisions holds the revision of each written value.
	revisions map[uint64]int64
	acked     int
	unknown   int
	failures  map[string]int
	// gap is the longest time between acknowledged writes.
	gap gap
}

// newHistory returns the history of a run of this duration.
func newHistory(t *testing.T, duration time.Duration) *history {
	now, life := time.Now(), max(minKeyLife, duration*keys/maxKeys)
	return &history{t: t, begin: now, keyLife: life, gap: gap{last: now}, notes: map[string]note{}, revisions: map[uint64]int64{}, failures: map[string]int{}}
}

const (
	// callTimeout bounds one call. A call that takes longer has an unknown outcome.
	callTimeout = 8 * time.Second
	// maxSearch bounds the search for an order of the calls.
	maxSearch = 2 * time.Minute
	// keys is how many registers are written at the same time, for keyLife. Then others follow,
	// because the search time depends on the unknown outcomes per key.
	keys       = 3
	minKeyLife = 15 * time.Second
	// maxKeys bounds their total number. Their VIPs are in one /24.
	maxKeys = 180
)

// ask makes a call and returns its outcome.
func ask(ctx context.Context, manager string, op operation, revision int64) (out outcome, now int64, err error) {
	c := managers[manager]
	switch op.action {
	case get:
		res, err := c.Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: "Service", Name: registerName(op.key)}))
		if connect.CodeOf(err) == connect.CodeNotFound {
			return outcome{}, 0, nil
		}
		if err != nil {
			return outcome{}, 0, err
		}
		o := res.Msg.GetObjects()[0]
		return outcome{found: true, value: o.GetService().GetLimits().GetPackets()}, o.GetRevision(), nil
	case remove:
		_, err := c.Delete(ctx, connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{{Kind: "Service", Name: registerName(op.key)}}}))
		if connect.CodeOf(err) == connect.CodeNotFound {
			return outcome{refused: true}, 0, nil
		}
		return outcome{}, 0, err
	default:
		res, err := c.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{registerService(op.key, op.value, revision)}}))
		if op.action == applyIf && connect.CodeOf(err) == connect.CodeAborted {
			return outcome{refused: true}, 0, nil
		}
		if err != nil {
			return outcome{}, 0, err
		}
		return outcome{}, res.Msg.GetChanges()[0].GetAfter().GetRevision(), nil
	}
}

// do makes a call through a manager and records it. The revision is for applyIf.
func (h *history) do(client int, manager string, op operation, revision int64) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	begin := time.Since(h.begin).Nanoseconds()
	out, now, err := ask(ctx, manager, op, revision)
	end := time.Since(h.begin).Nanoseconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		if !h.failedLocked(manager, err) || op.action == get {
			return outcome{unknown: true} // no effect
		}
		h.unknown++
		out, end = outcome{unknown: true}, math.MaxInt64
	} else if op.action != get && !out.refused {
		h.ackedLocked()
	}
	value := max(op.value, out.value)
	if former := h.revisions[value]; now != 0 && former != 0 && now != former {
		h.t.Errorf("%+v through %s: revision %d, and %d before", op, manager, now, former)
	}
	if now != 0 {
		h.revisions[value] = now
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: op, Output: out, Call: begin, Return: end})
	return out
}

// failedLocked records a failure, and returns whether the call may have had an effect nevertheless.
func (h *history) failedLocked(manager string, err error) (perhaps bool) {
	h.failures[fmt.Sprintf("%s: %s", connect.CodeOf(err), shorten(err))]++
	switch code := connect.CodeOf(err); {
	case errors.Is(err, lab.ErrNotReached):
		return false
	case code == connect.CodeFailedPrecondition: // no space
		return false
	case code == connect.CodeUnimplemented && strings.Contains(err.Error(), "404"):
		// The rest of "not found" was lost with its manager.
		return true
	case code == connect.CodeUnavailable, code == connect.CodeDeadlineExceeded, code == connect.CodeCanceled, code == connect.CodeUnknown, code == connect.CodeInternal:
		return true
	default:
		h.t.Errorf("through %s: %v", manager, err)
		return true
	}
}

// shorten removes the addresses of single connections, so that equal failures are counted together.
func shorten(err error) string {
	var op *net.OpError
	if errors.Is(err, lab.ErrNotReached) {
		return lab.ErrNotReached.Error()
	}
	if errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

func (h *history) ackedLocked() {
	h.gap.note(time.Now())
	h.acked++
}

// key returns one of the keys in use.
func (h *history) key(random *rand.Rand) int { return h.used() - 1 - random.IntN(keys) }

// used returns how many keys there were.
func (h *history) used() int { return min((int(time.Since(h.begin)/h.keyLife)+1)*keys, maxKeys) }

// work makes calls until ctx ends. Each client has its own values.
func (h *history) work(ctx context.Context, client int, random *rand.Rand) {
	value := uint64(client+1) * 1_000_000
	for ctx.Err() == nil {
		op := operation{key: h.key(random), action: get}
		manager := fmt.Sprintf("manager%d", 1+random.IntN(cluster.Topology.Managers))
		var revision int64
		switch n := random.IntN(10); {
		case n < 3:
			op.action = apply
		case n < 5:
			// There may be a later write by another client between the two.
			seen := h.do(client, manager, op, 0)
			if !seen.found {
				continue
			}
			op.action, op.former = applyIf, seen.value
			h.mu.Lock()
			revision = h.revisions[seen.value]
			h.mu.Unlock()
			manager = fmt.Sprintf("manager%d", 1+random.IntN(cluster.Topology.Managers))
		case n < 6:
			op.action = remove
		}
		if op.action == apply || op.action == applyIf {
			value++
			op.value = value
		}
		h.do(client, manager, op, revision)
		if random.IntN(4) == 0 {
			h.jot(client, random)
		}
		sleep(ctx, time.Duration(random.IntN(200))*time.Millisecond)
	}
}

// check checks whether one order of all calls explains every response.
func (h *history) check() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	counts := map[action]int{}
	for _, op := range h.ops {
		counts[op.Input.(operation).action]++
	}
	h.t.Logf("%d writes acknowledged, %d of unknown outcome; the longest time between two acknowledgements was %v; of registers: %v",
		h.acked, h.unknown, h.gap, counts)
	for why, n := range h.failures {
		h.t.Logf("%5d × %s", n, why)
	}
	for _, a := range []action{get, apply, applyIf, remove} {
		if counts[a] == 0 {
			h.t.Errorf("no %s: the run shows nothing of it", a)
		}
	}
	switch result, info := porcupine.CheckOperationsVerbose(registers, h.ops, maxSearch); result {
	case porcupine.Illegal:
		path := filepath.Join(os.TempDir(), "chaos-history.html")
		if err := porcupine.VisualizePath(registers, info, path); err != nil {
			h.t.Log(err)
		}
		h.t.Errorf("no order of the calls explains all answers: see %s", path)
	case porcupine.Unknown:
		h.t.Error("the search for an order of the calls did not end in time")
	}
}
