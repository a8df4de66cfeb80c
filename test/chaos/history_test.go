//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// A register is a service whose limit of packets is its value: writes are Apply, reads are Get, each through any manager.

// operation is what was asked of a register.
type operation struct {
	key   int
	write bool
	value uint64 // written
}

// outcome is the answer. A write whose answer never came may have been made or not, at any time.
type outcome struct {
	value   uint64 // read
	unknown bool
}

// registers is the sequential specification: a read gives the last value written.
var registers = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := map[int][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(operation).key
			parts[key] = append(parts[key], op)
		}
		var out [][]porcupine.Operation
		for _, part := range parts {
			out = append(out, part)
		}
		return out
	},
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		op, out := input.(operation), output.(outcome)
		if op.write {
			return true, op.value
		}
		return out.value == state.(uint64), state
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v %+v", input, output) },
}

// history collects operations of several clients.
type history struct {
	t     *testing.T
	begin time.Time

	mu       sync.Mutex
	ops      []porcupine.Operation
	acked    int
	unknown  int
	failures map[string]int
}

func newHistory(t *testing.T) *history {
	return &history{t: t, begin: time.Now(), failures: map[string]int{}}
}

// callTimeout bounds one call; what takes longer has an unknown outcome.
const callTimeout = 8 * time.Second

// registerYAML is the service of a register.
func registerYAML(key int, value uint64) *apiv1.Object {
	vip, _ := lab.VIPAddresses(100 + key)
	return &apiv1.Object{Kind: &apiv1.Object_Service{Service: &apiv1.Service{
		Name: fmt.Sprintf("register%d", key), Vip: []string{vip.String()}, Limits: &apiv1.Limits{Packets: value},
		Endpoints: []*apiv1.Endpoint{{Protocol: "tcp", Port: "7", Backends: []*apiv1.Backend{{Dip: []string{"10.20.1.11"}, Host: "10.20.1.1"}}}},
	}}}
}

// do makes a call through a manager and notes it.
func (h *history) do(client int, manager string, op operation) {
	c, err := cluster.ClientOf(manager)
	if err != nil {
		h.t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	note := porcupine.Operation{ClientId: client, Input: op, Call: time.Since(h.begin).Nanoseconds()}
	out := outcome{}
	if op.write {
		_, err = c.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{registerYAML(op.key, op.value)}}))
	} else {
		var res *connect.Response[apiv1.GetResponse]
		res, err = c.Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: "Service", Name: fmt.Sprintf("register%d", op.key)}))
		switch {
		case err == nil:
			out.value = res.Msg.GetObjects()[0].GetService().GetLimits().GetPackets()
		case connect.CodeOf(err) == connect.CodeNotFound:
			err = nil // never written
		}
	}
	note.Return = time.Since(h.begin).Nanoseconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.failures[fmt.Sprintf("%s: %s", connect.CodeOf(err), err)]++
		if connect.CodeOf(err) == connect.CodeInvalidArgument || connect.CodeOf(err) == connect.CodePermissionDenied {
			h.t.Errorf("%+v through %s: %v", op, manager, err)
		}
		if !op.write {
			return // it says nothing
		}
		h.unknown++
		out.unknown, note.Return = true, math.MaxInt64
	} else {
		h.acked++
	}
	note.Output = out
	h.ops = append(h.ops, note)
}

// work reads and writes registers until ctx ends. Values of one client are its own.
func (h *history) work(ctx context.Context, client, keys int, random *rand.Rand) {
	value := uint64(client+1) * 1_000_000
	for ctx.Err() == nil {
		op := operation{key: random.IntN(keys), write: random.IntN(2) == 0}
		if op.write {
			value++
			op.value = value
		}
		h.do(client, fmt.Sprintf("manager%d", 1+random.IntN(cluster.Topology.Managers)), op)
		select {
		case <-time.After(time.Duration(random.IntN(200)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// check asks whether one order of all calls explains every answer. A write without an answer that nobody ever read could
// always have been the last one, and is left out: it explains nothing and makes the search long.
func (h *history) check() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	read := map[uint64]bool{}
	for _, op := range h.ops {
		read[op.Output.(outcome).value] = true
	}
	var ops []porcupine.Operation
	writes, reads := 0, 0
	for _, op := range h.ops {
		in := op.Input.(operation)
		if op.Output.(outcome).unknown && !read[in.value] {
			continue
		}
		if in.write {
			writes++
		} else {
			reads++
		}
		ops = append(ops, op)
	}
	h.t.Logf("%d writes and %d reads, %d writes with an unknown outcome", writes, reads, h.unknown)
	for why, n := range h.failures {
		h.t.Logf("%5d × %s", n, why)
	}
	if writes == 0 || reads == 0 {
		h.t.Error("nothing was written or read: the run shows nothing")
	}
	switch result, info := porcupine.CheckOperationsVerbose(registers, ops, 2*time.Minute); result {
	case porcupine.Illegal:
		path := h.t.Name() + "-history.html"
		if err := porcupine.VisualizePath(registers, info, "/tmp/"+path); err != nil {
			h.t.Log(err)
		}
		h.t.Errorf("no order of the calls explains all answers: see /tmp/%s", path)
	case porcupine.Unknown:
		h.t.Error("the search for an order of the calls did not end in time")
	}
}

// TestHistoryFindsLies: the check must be able to fail.
func TestHistoryFindsLies(t *testing.T) {
	op := func(write bool, value uint64, call, ret int64) porcupine.Operation {
		out := outcome{}
		if !write {
			out.value = value
		}
		return porcupine.Operation{Input: operation{write: write, value: value}, Output: out, Call: call, Return: ret}
	}
	for name, c := range map[string]struct {
		ops  []porcupine.Operation
		want bool
	}{
		"in order":         {[]porcupine.Operation{op(true, 1, 0, 1), op(false, 1, 2, 3)}, true},
		"at the same time": {[]porcupine.Operation{op(true, 1, 0, 5), op(false, 0, 1, 2), op(false, 1, 3, 4)}, true},
		"a lost write":     {[]porcupine.Operation{op(true, 1, 0, 1), op(false, 0, 2, 3)}, false},
		"a stale read":     {[]porcupine.Operation{op(true, 1, 0, 1), op(true, 2, 2, 3), op(false, 2, 4, 5), op(false, 1, 6, 7)}, false},
	} {
		if got := porcupine.CheckOperations(registers, c.ops); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
