package lab_test

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// echoService returns a UDP echo service over both families.
func echoService(name string, number int) service {
	return service{name: name, number: number, protocol: "udp", port: 7, dipPort: 7, backends: []string{"host1-vm1", "host2-vm1", "host3-vm1"}}
}

// The mux and host of a killed agent continue to forward, and the new agent adopts their tables. No
// packet is lost.
func TestAgentRestartLosesNothing(t *testing.T) {
	logsOnFailure(t, shared)
	echo := echoService("restart", 28)
	echo.up(t)
	s := startStream(t, echo.targets())
	for _, node := range []string{"mux1", "mux2", "host1"} {
		if err := shared.RestartAgent(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	echo.awaitAlive(t, len(echo.backends))
	echo.awaitHops(t, shared.Topology.Muxes)
	s.awaitAnswers(t)
	sent, lost, gap := s.finish(t)
	t.Logf("%d datagrams sent while three agents restarted, longest gap %s", sent, gap)
	if lost > 0 {
		t.Errorf("%d of %d datagrams were lost:\n%s", lost, sent, s.describe())
	}
}

// A lost mux is removed from the routes, and used again after it returns. Flows stay on their
// servers, because all muxes have the same rings.
func TestMuxLoss(t *testing.T) {
	logsOnFailure(t, shared)
	echo := echoService("loss", 29)
	echo.up(t)
	s := startStream(t, echo.targets())
	if err := shared.LoseMux(t.Context(), "mux2"); err != nil {
		t.Fatal(err)
	}
	echo.awaitHops(t, shared.Topology.Muxes-1)
	left := time.Now()
	// Both families work without it.
	for _, target := range echo.targets() {
		for range 20 {
			echoOnce(t, "udp", target, "without mux2")
		}
	}
	if err := shared.ReviveMux("mux2"); err != nil {
		t.Fatal(err)
	}
	echo.awaitHops(t, shared.Topology.Muxes)
	if err := shared.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	sent, lost, gap := s.finish(t)
	t.Logf("%d datagrams sent, %d lost, longest gap on one flow %s", sent, lost, gap)
	if sentAfter, lostAfter := s.since(left); lostAfter > 0 {
		t.Errorf("%d of %d datagrams were lost after the router had left mux2 out:\n%s", lostAfter, sentAfter, s.describe())
	}
}

// A stopped server receives no more requests. After its return it serves again.
func TestBackendLossAndReturn(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "backend", number: 30, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host1-vm2", "host2-vm1", "host3-vm1"}}
	web.up(t)
	if err := shared.StopServer(t.Context(), "host1-vm2"); err != nil {
		t.Fatal(err)
	}
	web.awaitAlive(t, 2)
	for _, target := range web.targets() {
		if counts := servers(t, target, 60); len(counts) != 2 || counts["host1-vm2"] > 0 {
			t.Errorf("%s: with host1-vm2 stopped answers came from %v", target, counts)
		}
	}
	if err := shared.StartServer(t.Context(), "host1-vm2"); err != nil {
		t.Fatal(err)
	}
	web.awaitAlive(t, 3)
	for _, target := range web.targets() {
		if counts := servers(t, target, 100); len(counts) != 3 {
			t.Errorf("%s: with host1-vm2 back answers came from %v", target, counts)
		}
	}
}

// A VIP without a healthy backend is withdrawn, and advertised again when one recovers.
func TestWithdrawWithoutBackends(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "withdraw", number: 31, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host2-vm2"}}
	web.up(t)
	if err := shared.StopServer(t.Context(), "host2-vm2"); err != nil {
		t.Fatal(err)
	}
	web.awaitHops(t, 0)
	if err := shared.StartServer(t.Context(), "host2-vm2"); err != nil {
		t.Fatal(err)
	}
	web.awaitHops(t, shared.Topology.Muxes)
	for _, target := range web.targets() {
		servers(t, target, 5)
	}
}

// A deleted service is withdrawn.
func TestWithdrawAfterDelete(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "gone", number: 32, protocol: "tcp", port: 80, dipPort: 8080, backends: []string{"host2-vm1"}}
	t.Run("up", web.up) // deleted at the end of the subtest
	web.awaitHops(t, 0)
}

// A server that owns the VIP on its loopback receives packets unchanged, and responds from the VIP
// itself.
func TestVIPOnLoopback(t *testing.T) {
	logsOnFailure(t, shared)
	web := service{name: "loopback", number: 33, protocol: "tcp", port: 8080, dipPort: 8080, rewrite: "none", backends: []string{"host2-vm1"}}
	echo := service{name: "loopback-udp", number: 34, protocol: "udp", port: 7, dipPort: 7, rewrite: "none", backends: []string{"host2-vm1"}}
	own(t, "host2-vm1", append(web.vips(), echo.vips()...))
	before := reasons(t.Context(), t, "host2")["in_untouched"]
	web.up(t)
	echo.up(t)
	for _, target := range web.targets() {
		servers(t, target, 10)
		transfer(t, target)
	}
	for _, target := range echo.targets() {
		for range 10 {
			echoOnce(t, "udp", target, "to the VIP itself")
		}
	}
	await(t, "host2 to count untouched packets", func(ctx context.Context) error {
		if now := reasons(ctx, t, "host2")["in_untouched"]; now < before+40 {
			return fmt.Errorf("in_untouched went from %d to %d", before, now)
		}
		return nil
	})
}
