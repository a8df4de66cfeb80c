package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

// leader returns the name of the leading manager, and its epoch.
func leader(ctx context.Context) (name string, epoch int64, err error) {
	status, err := anyone.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
	if err != nil {
		return "", 0, err
	}
	if status.Msg.GetLeader() == "" {
		return "", 0, errors.New("nobody leads")
	}
	return status.Msg.GetLeader(), status.Msg.GetEpoch(), nil
}

// frozenFor is how long the leader is frozen.
const frozenFor = 30 * time.Second

// TestFrozenLeader is Ananta's outage: the leader's disk, here its process, freezes for 30 seconds,
// another manager takes over, and then the old leader resumes unaware. No node may apply its plans,
// no write of it may succeed, and health reports must reach the new leader.
func TestFrozenLeader(t *testing.T) {
	logs(t)
	if _, err := cluster.Apply(t.Context(), echoYAML()); err != nil {
		t.Fatal(err)
	}
	await(t, "all to agree before anything happens", agree)
	old, epoch, err := leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first, err := managers[old].Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{registerService(0, 1, 0)}}))
	if err != nil {
		t.Fatal(err)
	}
	revision := first.Msg.GetRevision()
	if err := cluster.FreezeManager(old, true); err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	t.Cleanup(func() { _ = cluster.FreezeManager(old, false) })
	// The kernel accepts this call for the frozen leader on its existing connection. The leader
	// processes it when it resumes.
	stuck := make(chan error, 1)
	go func() {
		_, err := managers[old].Apply(context.Background(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{registerService(0, 2, revision)}}))
		stuck <- err
	}()
	next, nextEpoch := awaitSuccessor(t, old, epoch)
	t.Logf("%s took over from %s %s after it froze", next, old, time.Since(frozen).Round(time.Millisecond))
	await(t, "all nodes at the new leader", func(ctx context.Context) error { return nodesAt(ctx, old, nextEpoch) })
	// The new leader must receive the report of a server that dies now.
	dead := lab.VMName(1, 1)
	if err := cluster.StopServer(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	died := time.Now()
	await(t, "the new leader to hear of a dead server", func(ctx context.Context) error { return heardOf(ctx, false) })
	t.Logf("the new leader knew %s after a server died", time.Since(died).Round(time.Millisecond))
	if err := cluster.StartServer(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	await(t, "the new leader to hear of its return", func(ctx context.Context) error { return heardOf(ctx, true) })
	if _, err := anyone.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{registerService(0, 3, revision)}})); err != nil {
		t.Fatal(err)
	}
	sleep(t.Context(), time.Until(frozen.Add(frozenFor)))
	if err := cluster.FreezeManager(old, false); err != nil {
		t.Fatal(err)
	}
	if err := <-stuck; err == nil {
		t.Error("the former leader acknowledged a write that another one went before")
	} else {
		t.Logf("the write that the frozen leader had: %v", err)
	}
	await(t, "all to agree again", agree)
	var name string
	var e int64
	await(t, "somebody to lead", func(ctx context.Context) (err error) {
		name, e, err = leader(ctx)
		return err
	})
	if e < nextEpoch || (name == old && e == epoch) {
		t.Fatalf("%s leads in epoch %d; %s did in %d", name, e, next, nextEpoch)
	}
	out, _, err := ask(t.Context(), old, operation{action: get}, 0)
	if err != nil || out.value != 3 {
		t.Fatalf("the former leader has %+v of what was written as 3 while it stood still: %v", out, err)
	}
	if _, err := anyone.Delete(t.Context(), connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{{Kind: "Service", Name: registerName(0)}}})); err != nil {
		t.Fatal(err)
	}
}

// awaitSuccessor waits for another leader in a later epoch.
func awaitSuccessor(t *testing.T, old string, epoch int64) (next string, nextEpoch int64) {
	t.Helper()
	await(t, "another leader", func(ctx context.Context) error {
		name, e, err := leader(ctx)
		if err == nil && (name == old || e <= epoch) {
			err = fmt.Errorf("%s leads in epoch %d", name, e)
		}
		next, nextEpoch = name, e
		return err
	})
	return next, nextEpoch
}

// nodesAt checks that every node is connected, none to the old leader, and that each has applied
// the epoch by its own metrics.
func nodesAt(ctx context.Context, old string, epoch int64) error {
	res, err := anyone.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
	if err != nil {
		return err
	}
	for _, n := range res.Msg.GetNodes() {
		if !n.GetConnected() || n.GetManager() == old {
			return fmt.Errorf("%s is connected: %v, to %s", n.GetName(), n.GetConnected(), n.GetManager())
		}
	}
	for _, n := range cluster.Topology.Nodes() {
		if n.Kind != lab.KindMux && n.Kind != lab.KindHost {
			continue
		}
		if m, err := metricsOf(ctx, n); err != nil || m.epoch != fmt.Sprint(epoch) {
			return fmt.Errorf("%s obeys epoch %s of %d: %w", n.Name, m.epoch, epoch, err)
		}
	}
	return nil
}

// heardOf checks that every mux reports the server of the first host alive or dead to the leader,
// whichever node checks it.
func heardOf(ctx context.Context, alive bool) error {
	res, err := anyone.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
	if err != nil {
		return err
	}
	told := 0
	for _, n := range res.Msg.GetNodes() {
		for _, m := range n.GetMembers() {
			if n.GetRole() != string(lab.KindMux) || !slices.Contains(texts(both(lab.VMAddresses(1, 1))), m.GetDip()) || m.GetPort() != lab.EchoPort {
				continue
			}
			if m.GetAlive() != alive {
				return fmt.Errorf("%s calls that of %s alive: %v", n.GetName(), m.GetService(), m.GetAlive())
			}
			told++
		}
	}
	if told != cluster.Topology.Muxes*len(echoes)*families {
		return fmt.Errorf("%d verdicts of muxes", told)
	}
	return nil
}
