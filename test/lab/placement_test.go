package lab_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestPlacement checks that VIPs are on the muxes on which the managers place them, in routers,
// plans and tables, and move without a lost packet. The steps follow each other in one lab.
func TestPlacement(t *testing.T) {
	placesLab(t)
	web := []service{placedWeb("flows", 10, "  affinity: flow\n"), placedWeb("hashes", 11, "  affinity: hash\n")}
	echo := echoService("echo", 12)
	echo.rest, echo.health = "placement: {replicas: 2}\n", patientHTTP
	all := append(slices.Clone(web), echo)
	for _, s := range all {
		s.apply(t)
	}
	step := func(name string, do func(*testing.T)) {
		if !t.Failed() {
			t.Run(name, do)
		}
	}
	step("two muxes in two zones", func(t *testing.T) {
		now := awaitPlaces(t, "VIPs on two muxes", all, evenly)
		awaitOnlyOwn(t, all, now)
	})
	step("drain and undrain", func(t *testing.T) {
		traffic := startTraffic(t, web, echo)
		t.Log(mustShunt(t, "drain", "node", "mux1"))
		now := awaitPlaces(t, "VIPs without mux1", all, without("mux1"))
		awaitOnlyOwn(t, all, now)
		t.Log(mustShunt(t, "undrain", "node", "mux1"))
		now = awaitPlaces(t, "VIPs on all muxes again", all, evenly)
		awaitOnlyOwn(t, all, now)
		traffic.end(t)
	})
	step("the leader dies while VIPs move", func(t *testing.T) {
		traffic := startTraffic(t, web, echo)
		leader := status(t.Context(), t).GetLeader()
		mustShunt(t, "drain", "node", "mux1")
		await(t, "VIPs that leave mux1", func(ctx context.Context) error { return leave(ctx, all, "mux1") })
		if err := shared.KillManager(t.Context(), leader); err != nil {
			t.Fatal(err)
		}
		now := awaitPlaces(t, "VIPs without mux1", all, without("mux1"))
		awaitOnlyOwn(t, all, now)
		next := status(t.Context(), t).GetLeader()
		t.Logf("%s led, then %s", leader, next)
		if next == leader {
			t.Errorf("%s still leads", leader)
		}
		if err := shared.StartManager(leader); err != nil {
			t.Fatal(err)
		}
		awaitManagers(t)
		mustShunt(t, "undrain", "node", "mux1")
		awaitPlaces(t, "VIPs on all muxes again", all, evenly)
		traffic.end(t)
	})
	step("managers that come and go move nothing", func(t *testing.T) {
		before := awaitPlaces(t, "VIPs at rest", all, evenly)
		moved := countEvents(t, "Moved", "Placed")
		traffic := startTraffic(t, web, echo)
		for i := range shared.Topology.Managers {
			name := fmt.Sprintf("manager%d", i+1)
			if err := shared.KillManager(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			awaitNodes(t)
			if err := shared.StartManager(name); err != nil {
				t.Fatal(err)
			}
			awaitManagers(t)
		}
		traffic.end(t)
		t.Logf("nodes of managers: %v", nodesOfManagers(t.Context(), t))
		now := awaitPlaces(t, "VIPs at rest", all, evenly)
		if before.String() != now.String() {
			t.Errorf("places went from %s to %s", before, now)
		}
		if n := countEvents(t, "Moved", "Placed"); n != moved {
			t.Errorf("%d events of moves, before %d", n, moved)
		}
	})
	step("a new VIP goes where the fewest are", func(t *testing.T) {
		have := slices.Clone(all)
		for number := 20; number < 23; number++ {
			before := awaitPlaces(t, "VIPs at rest", have, nil)
			s := placedWeb(fmt.Sprintf("new%d", number), number, "")
			s.only4 = true
			s.apply(t)
			have = append(have, s)
			now := awaitPlaces(t, "the new VIP", have, nil)
			fewest := "mux1"
			if counts := before.counts(); counts["mux3"] < counts["mux1"] {
				fewest = "mux3"
			} else if counts["mux3"] == counts["mux1"] {
				fewest = ""
			}
			got := now[s.vips()[0].String()].GetMuxes()
			if !slices.Contains(got, "mux2") || fewest != "" && !slices.Contains(got, fewest) {
				t.Errorf("the new VIP is on %v; before, muxes had %v", got, before.counts())
			}
			for vip, p := range before {
				if !slices.Equal(p.GetMuxes(), now[vip].GetMuxes()) {
					t.Errorf("%s went from %v to %v for a VIP that came", vip, p.GetMuxes(), now[vip].GetMuxes())
				}
			}
		}
	})
	step("a dead mux is replaced", func(t *testing.T) {
		before := awaitPlaces(t, "VIPs at rest", all, evenly)
		if err := shared.LoseMux(t.Context(), "mux3"); err != nil {
			t.Fatal(err)
		}
		for vip, p := range before {
			if slices.Contains(p.GetMuxes(), "mux3") {
				awaitGone(t, vip, "mux3")
			}
		}
		// The router has removed it, and no mux has taken over its VIPs yet.
		traffic := startTraffic(t, web, echo)
		now := awaitPlaces(t, "VIPs without mux3", all, without("mux3"))
		awaitOnlyOwn(t, all, now)
		if err := shared.ReviveMux("mux3"); err != nil {
			t.Fatal(err)
		}
		now = awaitPlaces(t, "VIPs on all muxes again", all, evenly)
		awaitOnlyOwn(t, all, now)
		traffic.end(t)
	})
	step("nodes are spread over managers again", func(t *testing.T) {
		var now map[string]int
		await(t, "no manager with more than half of the nodes", func(ctx context.Context) error {
			now = nodesOfManagers(ctx, t)
			for name, n := range now {
				if n > 3 {
					return fmt.Errorf("%s has %d nodes", name, n)
				}
			}
			return nil
		})
		t.Logf("nodes of managers: %v", now)
	})
}

// nodesOfManagers counts the nodes connected to each manager.
func nodesOfManagers(ctx context.Context, t *testing.T) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, n := range status(ctx, t).GetNodes() {
		out[n.GetManager()]++
	}
	return out
}

// evenly checks that each VIP is in two zones, and that no mux has more than one VIP more than
// another of its zone.
func evenly(now places) error {
	counts := now.counts()
	for vip, p := range now {
		if a, b := p.GetMuxes()[0], p.GetMuxes()[1]; zones[a] == zones[b] {
			return fmt.Errorf("%s is in zone %s alone", vip, zones[a])
		}
	}
	if d := counts["mux1"] - counts["mux3"]; d < -1 || d > 1 {
		return fmt.Errorf("VIPs are %v", counts)
	}
	return nil
}

// without returns a check that no VIP is on a mux.
func without(mux string) func(places) error {
	return func(now places) error {
		for vip, p := range now {
			if slices.Contains(p.GetMuxes(), mux) {
				return fmt.Errorf("%s is on %s", vip, mux)
			}
		}
		return nil
	}
}

// leave returns nil when a VIP is leaving a mux.
func leave(ctx context.Context, services []service, mux string) error {
	now, err := readPlaces(ctx, services)
	if err != nil {
		return err
	}
	for p := range maps.Values(now) {
		if slices.Contains(p.GetLeaving(), mux) {
			return nil
		}
	}
	return errors.New(now.String())
}

// awaitGone waits until the router does not use a mux for a VIP.
func awaitGone(t *testing.T, vip, mux string) {
	t.Helper()
	await(t, "the router to leave "+mux+" out", func(context.Context) error {
		via, err := muxesAtRouter(netip.MustParseAddr(vip))
		if err == nil && (len(via) == 0 || slices.Contains(via, mux)) {
			err = fmt.Errorf("%s by %v", vip, via)
		}
		return err
	})
}

// awaitManagers waits until all managers are up and one leads, and all nodes are connected.
func awaitManagers(t *testing.T) {
	t.Helper()
	await(t, "all managers", func(ctx context.Context) error {
		client, err := shared.Client()
		if err != nil {
			return err
		}
		answer, err := client.Members(ctx, connect.NewRequest(&apiv1.MembersRequest{}))
		if err != nil {
			return err
		}
		leaders := 0
		for _, m := range answer.Msg.GetMembers() {
			if !m.GetHealthy() {
				return fmt.Errorf("%s: %s", m.GetName(), m.GetError())
			}
			if m.GetLeader() {
				leaders++
			}
		}
		if n := len(answer.Msg.GetMembers()); n != shared.Topology.Managers || leaders != 1 {
			return fmt.Errorf("%d managers, %d lead", n, leaders)
		}
		return nil
	})
	awaitNodes(t)
}

// awaitNodes waits until all nodes report to the leader.
func awaitNodes(t *testing.T) {
	t.Helper()
	await(t, "all nodes", func(ctx context.Context) error {
		answer := status(ctx, t)
		if answer.GetLeader() == "" {
			return errors.New("nobody leads")
		}
		for _, n := range answer.GetNodes() {
			if !n.GetConnected() {
				return fmt.Errorf("%s is not connected", n.GetName())
			}
		}
		return nil
	})
}

// countEvents counts the events of services, by reason.
func countEvents(t *testing.T, reasons ...string) (n uint32) {
	t.Helper()
	client, err := shared.Client()
	if err != nil {
		t.Fatal(err)
	}
	events, err := client.Events(t.Context(), connect.NewRequest(&apiv1.EventsRequest{Kind: "Service"}))
	if err != nil {
		t.Fatal(err)
	}
	for events.Receive() {
		for _, e := range events.Msg().GetEvents() {
			if slices.Contains(reasons, e.GetReason()) {
				n += e.GetCount()
			}
		}
	}
	if err := events.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}
