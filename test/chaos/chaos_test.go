//go:build chaos

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lab"
)

const (
	talkers = 32
	workers = 4
	keys    = 3
)

// webYAML is the echo service that the long connections use, on every host's server.
func webYAML() string {
	vip, _ := lab.VIPAddresses(1)
	var b strings.Builder
	fmt.Fprintf(&b, "kind: Service\nname: web\nvip: %s\nendpoints:\n- protocol: tcp\n  port: 7\n  health: {tcp: {}, interval: 200ms, timeout: 200ms}\n  backends:\n", vip)
	for i := 1; i <= cluster.Topology.Hosts.Count; i++ {
		fmt.Fprintf(&b, "  - {dip: %s, port: 7, host: %s}\n", lab.VMAddresses(i, 1).V4.Addr(), lab.HostAddresses(i).V4.Addr())
	}
	return b.String()
}

// TestChaos: while managers, muxes, hosts' agents and the ways between them fail by a seeded schedule, no connection breaks, every
// answer of the API is explained by one order of all calls, and in the end everybody agrees with the store.
func TestChaos(t *testing.T) {
	logs(t)
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d: go test ./test/chaos -chaos.seed %d -chaos.for %s", seed, seed, *duration)
	if _, err := cluster.Apply(t.Context(), webYAML()); err != nil {
		t.Fatal(err)
	}
	vip, _ := lab.VIPAddresses(1)
	target := vip.String() + ":7"
	await(t, "an answer from "+target, func(ctx context.Context) error { return agree(ctx, vip.String()) })
	talk := startTalks(t, target, talkers)

	ctx, cancel := context.WithTimeout(t.Context(), *duration)
	defer cancel()
	h := newHistory(t)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { h.work(ctx, i, keys, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	events := schedule(ctx, t, rand.New(rand.NewPCG(seed, 1<<32)))
	wg.Wait()
	t.Logf("%d faults", events)

	await(t, "all nodes to agree with the store", func(ctx context.Context) error { return agree(ctx, vip.String()) })
	talk.end()
	for key := range keys {
		for i := 1; i <= cluster.Topology.Managers; i++ {
			h.do(workers, fmt.Sprintf("manager%d", i), operation{key: key})
		}
	}
	h.check()
}

// agree tells whether all managers and nodes are there, obey the newest revision, and name one member for a flow.
func agree(ctx context.Context, vip string) error {
	client, err := cluster.Client()
	if err != nil {
		return err
	}
	members, err := client.Members(ctx, connect.NewRequest(&apiv1.MembersRequest{}))
	if err != nil {
		return err
	}
	leaders := 0
	for _, m := range members.Msg.GetMembers() {
		if !m.GetHealthy() {
			return fmt.Errorf("%s: %s", m.GetName(), m.GetError())
		}
		if m.GetLeader() {
			leaders++
		}
	}
	if n := len(members.Msg.GetMembers()); n != cluster.Topology.Managers || leaders != 1 {
		return fmt.Errorf("%d managers, of which %d lead", n, leaders)
	}
	status, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
	if err != nil {
		return err
	}
	if n := len(status.Msg.GetNodes()); n != cluster.Topology.Muxes+cluster.Topology.Hosts.Count {
		return fmt.Errorf("%d nodes", n)
	}
	for _, n := range status.Msg.GetNodes() {
		if !n.GetConnected() || n.GetError() != "" || n.GetSyncedRevision() < status.Msg.GetRevision() {
			return fmt.Errorf("%s: connected %v, revision %d of %d: %s", n.GetName(), n.GetConnected(), n.GetSyncedRevision(), status.Msg.GetRevision(), n.GetError())
		}
		if n.GetRole() == "mux" && (len(n.GetRoutes()) == 0 || !n.GetRoutes()[0].GetAdvertised()) {
			return fmt.Errorf("%s announces nothing", n.GetName())
		}
	}
	for port := range uint32(8) {
		trace, err := client.Trace(ctx, connect.NewRequest(&apiv1.TraceRequest{Client: "198.51.100.11", ClientPort: 20000 + port, Vip: vip, Port: 7, Protocol: "tcp"}))
		if err != nil {
			return err
		}
		first := ""
		for _, r := range trace.Msg.GetResults() {
			if r.GetError() != "" || r.GetVerdict() != "forwarded" {
				return errors.New(r.GetNode() + ": " + r.GetVerdict() + r.GetError())
			}
			if first == "" {
				first = r.GetDip()
			}
			if r.GetDip() != first {
				return fmt.Errorf("%s sends a flow to %s, another mux to %s", r.GetNode(), r.GetDip(), first)
			}
		}
		if len(trace.Msg.GetResults()) != cluster.Topology.Muxes {
			return fmt.Errorf("%d muxes answer", len(trace.Msg.GetResults()))
		}
	}
	return nil
}

// leader is the name of the manager that leads, and its epoch.
func leader(ctx context.Context) (name string, epoch int64, err error) {
	client, err := cluster.Client()
	if err != nil {
		return "", 0, err
	}
	status, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
	if err != nil {
		return "", 0, err
	}
	if status.Msg.GetLeader() == "" {
		return "", 0, errors.New("nobody leads")
	}
	return status.Msg.GetLeader(), status.Msg.GetEpoch(), nil
}

// TestFrozenLeader is Ananta's outage: the leader's disk, here its process, stands still for 30 seconds, another takes over, and then it goes on
// as if nothing had been. No node obeys it, no write of it lands, and health reports reach the new one.
func TestFrozenLeader(t *testing.T) {
	logs(t)
	if _, err := cluster.Apply(t.Context(), webYAML()); err != nil {
		t.Fatal(err)
	}
	vip, _ := lab.VIPAddresses(1)
	await(t, "all nodes to agree with the store", func(ctx context.Context) error { return agree(ctx, vip.String()) })
	old, epoch, err := leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A write is on its way to the leader when it freezes: it may land before, never after.
	if err := cluster.FreezeManager(old, true); err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	t.Cleanup(func() { _ = cluster.FreezeManager(old, false) })
	stuck := make(chan error, 1)
	go func() {
		client, err := cluster.ClientOf(old)
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			_, err = client.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{registerYAML(9, 1)}}))
		}
		stuck <- err
	}()
	var next string
	var nextEpoch int64
	await(t, "another leader", func(ctx context.Context) error {
		name, e, err := leader(ctx)
		if err == nil && (name == old || e <= epoch) {
			err = fmt.Errorf("%s leads in epoch %d", name, e)
		}
		next, nextEpoch = name, e
		return err
	})
	t.Logf("%s took over from %s %s after it froze", next, old, time.Since(frozen).Round(time.Millisecond))
	await(t, "all nodes at the new leader", func(ctx context.Context) error {
		client, err := cluster.Client()
		if err != nil {
			return err
		}
		res, err := client.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{}))
		if err != nil {
			return err
		}
		for _, n := range res.Msg.GetNodes() {
			if !n.GetConnected() || n.GetManager() == old {
				return fmt.Errorf("%s is connected: %v, to %s", n.GetName(), n.GetConnected(), n.GetManager())
			}
		}
		return nil
	})
	if _, err := cluster.Apply(t.Context(), "kind: Service\nname: later\nvip: 203.0.113.50\nendpoints:\n- protocol: tcp\n  port: 7\n  backends: [{dip: 10.20.1.11, port: 7, host: 10.20.1.1}]\n"); err != nil {
		t.Fatal(err)
	}
	sleep(t.Context(), time.Until(frozen.Add(30*time.Second)))
	if err := cluster.FreezeManager(old, false); err != nil {
		t.Fatal(err)
	}
	t.Logf("the write that the frozen leader had: %v", <-stuck)
	await(t, "all to agree again", func(ctx context.Context) error { return agree(ctx, vip.String()) })
	name, e, err := leader(t.Context())
	if err != nil || e < nextEpoch || (name == old && e == epoch) {
		t.Fatalf("%s leads in epoch %d, %v; %s did in %d", name, e, err, next, nextEpoch)
	}
	client, err := cluster.ClientOf(old)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Service", Name: "later"}))
	if err != nil || len(res.Msg.GetObjects()) != 1 {
		t.Fatalf("the former leader does not know what was written while it stood still: %v", err)
	}
}
