package lab_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// A mux runs out of descriptors while servers that hang hold all of them. It reports that, marks no
// healthy server dead, and reports when it has enough again.
func TestChecksWithoutDescriptors(t *testing.T) {
	logsOnFailure(t, shared)
	newFarm(t)
	// The hanging servers need more than the sockets left by checks of the others and the spare
	// ones. They take all, and need more. Servers that respond have 5 s, twice, because a machine
	// that is slow for a moment does not lack descriptors.
	const answering, hanging, spare = 40, 160, 6
	service := func(number int, name, path, every string, from, to int) service {
		return service{
			name: name, number: number, protocol: "tcp", port: 80, backends: []string{"host1-vm1"}, only4: true, entry: entries(from, to),
			health: "{http: {path: " + path + "}, engine: socket, interval: " + every + ", timeout: " + every + ", rise: 1, fall: 2}",
		}
	}
	well, hang := service(112, "starvedwell", "/well", "5s", 0, answering), service(113, "starvedhang", "/hang", "1s", answering, answering+hanging)
	well.apply(t)
	allWell := func(ctx context.Context) error {
		if w := membersAt(ctx, t, well.name); w.alive != answering || w.unknown != 0 {
			return fmt.Errorf("%+v", w)
		}
		return nil
	}
	await(t, "a verdict on each server", allWell)
	flips, err := flipsAt(farmAtMux, well.name)
	if err != nil {
		t.Fatal(err)
	}

	since := time.Now()
	restore := spareDescriptors(t, agentOf(t, farmAtMux), spare)
	hang.apply(t)
	notWell := func(ctx context.Context, reason string) error {
		if w := membersAt(ctx, t, well.name); w.dead > 0 {
			t.Fatalf("servers that answer are called dead: %+v", w)
		}
		return happened(ctx, t, since, reason)
	}
	await(t, "the mux says that it starves", func(ctx context.Context) error { return notWell(ctx, "ChecksStarved") })
	// All hanging servers are probed often enough for a verdict, and hold all descriptors.
	await(t, "a verdict on servers that hang", func(ctx context.Context) error {
		if h := membersAt(ctx, t, hang.name); h.dead != hanging || h.unknown != 0 {
			return fmt.Errorf("%+v", h)
		}
		return notWell(ctx, "ChecksStarved")
	})
	if err := happened(t.Context(), t, since, "ChecksFed"); err == nil {
		t.Error("it says that it has descriptors, but has none")
	}
	restore()
	// Recovery takes a minute without shortage.
	for range 3 {
		if happened(t.Context(), t, since, "ChecksFed") == nil {
			break
		}
		awaitOr(t, func(ctx context.Context) error { return notWell(ctx, "ChecksFed") })
	}
	if err := happened(t.Context(), t, since, "ChecksFed"); err != nil {
		t.Error(err)
	}
	if n, err := flipsAt(farmAtMux, well.name); err != nil || n != flips {
		t.Errorf("%v verdicts on servers that answer changed, %v before: %v", n, flips, err)
	}
}

// awaitOr is await, but returns if the condition is not met in time.
func awaitOr(t *testing.T, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for condition(ctx) != nil {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// agentOf returns the process of a node's agent.
func agentOf(t *testing.T, node string) int {
	t.Helper()
	all, err := shared.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Node == node && p.Name == "agent" && p.Alive() {
			return p.Pid
		}
	}
	t.Fatalf("no agent runs on %s", node)
	return 0
}

// spareDescriptors limits a process to `spare` descriptors in addition to those it has, until the
// returned function is called or the test ends.
func spareDescriptors(t *testing.T, pid, spare int) (restore func()) {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	var open []int
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, n)
	}
	limit := 0
	for free := 0; free < spare; limit++ {
		if !slices.Contains(open, limit) {
			free++
		}
	}
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: before.Max}, nil); err != nil {
		t.Fatal(err)
	}
	restored := false
	restore = func() {
		if restored {
			return
		}
		restored = true
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
			t.Errorf("give descriptors back: %v", err)
		}
	}
	t.Cleanup(restore)
	return restore
}

// happened returns nil if the mux has an event with a reason.
func happened(ctx context.Context, t *testing.T, since time.Time, reason string) error {
	t.Helper()
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := client.Events(ctx, connect.NewRequest(&apiv1.EventsRequest{Kind: "Node", Name: farmAtMux, Since: timestamppb.New(since)}))
	if err != nil {
		return err
	}
	defer stream.Close()
	var reasons []string
	for stream.Receive() {
		for _, e := range stream.Msg().GetEvents() {
			if reasons = append(reasons, e.GetReason()); e.GetReason() == reason {
				return nil
			}
		}
	}
	return fmt.Errorf("no %s among events %q: %w", reason, reasons, stream.Err())
}
