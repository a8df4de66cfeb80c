package lab_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shuntlb/shunt/internal/lab"
)

// forwarded returns how many packets a mux sent to the members of a service, by its last report to
// the manager.
func forwarded(ctx context.Context, t *testing.T, node, service string) (packets uint64) {
	t.Helper()
	for _, n := range status(ctx, t).GetNodes() {
		for _, m := range n.GetMembers() {
			if n.GetName() == node && m.GetService() == service {
				packets += m.GetPackets()
			}
		}
	}
	return packets
}

// An agent with other table sizes fills new tables while the old program forwards, then replaces
// it. Another agent restores the original. No packet is lost, counters continue, and the reports of
// the speaker and of hosts do not change.
func TestUpgradeLosesNothing(t *testing.T) {
	logsOnFailure(t, shared)
	echo := echoService("upgrade", 40)
	echo.up(t)
	s := startStream(t, echo.targets())
	ctx := t.Context()
	for _, node := range []string{"mux1", "mux2"} {
		for _, flags := range [][]string{{"--flows", "65536", "--max-endpoints", "1024"}, nil} {
			before := forwarded(ctx, t, node, echo.name)
			speaker := speakerOf(t, node)
			if err := shared.ReplaceAgent(ctx, node, program, flags...); err != nil {
				t.Fatal(err)
			}
			s.awaitAnswers(t)
			await(t, node+" to count on", func(ctx context.Context) error {
				if now := forwarded(ctx, t, node, echo.name); now <= before {
					return fmt.Errorf("%d packets, %d before", now, before)
				}
				return nil
			})
			if now := speakerOf(t, node); now != speaker {
				t.Errorf("%s: the speaker was process %d, now %d", node, speaker, now)
			}
		}
	}
	echo.awaitHops(t, shared.Topology.Muxes)
	sent, lost, gap := s.finish(t)
	t.Logf("%d datagrams sent while two muxes migrated their tables twice, longest gap %s", sent, gap)
	if lost > 0 {
		t.Errorf("%d of %d datagrams were lost:\n%s", lost, sent, s.describe())
	}
}

// TestSpeakerIsUpgraded checks that an agent of another build replaces the speaker of the previous
// build, while datagrams go to a VIP through both muxes and the routers' BFD timeout is 0.3 s. No
// datagram is lost. The node reports the builds of both processes, and again after the return to
// the previous build.
func TestSpeakerIsUpgraded(t *testing.T) {
	logsOnFailure(t, shared)
	next := otherBuild(t, "next")
	echo := echoService("speaker", 41)
	echo.up(t)
	s := startStream(t, echo.targets())
	ctx := t.Context()
	changes := followRoutes(t)
	if err := shared.KeepRoutes(ctx, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.KeepRoutes(context.Background(), false); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct{ program, version string }{{next, "next"}, {program, "dev"}} {
		for _, node := range []string{"mux1", "mux2"} {
			former := speakerOf(t, node)
			if err := shared.ReplaceAgent(ctx, node, c.program); err != nil {
				t.Fatal(err)
			}
			await(t, node+" to run one build", func(ctx context.Context) error {
				for _, n := range status(ctx, t).GetNodes() {
					p := n.GetProcesses()
					if n.GetName() != node {
						continue
					}
					if len(p) != 2 || p[0].GetVersion() != c.version || p[1].GetVersion() != c.version || int(p[1].GetPid()) == former {
						return fmt.Errorf("processes %v, want version %s and another speaker than %d", p, c.version, former)
					}
					for _, peer := range n.GetPeers() {
						if peer.GetState() != "established" || peer.GetBfd() != "up" {
							return fmt.Errorf("peer %v", peer)
						}
					}
				}
				return nil
			})
			s.awaitAnswers(t)
		}
	}
	echo.awaitHops(t, shared.Topology.Muxes)
	for _, line := range changes() {
		for _, vip := range echo.vips() {
			if strings.Contains(line, vip.String()+" ") && (strings.HasPrefix(line, "Deleted ") || strings.Count(line, " via ") < shared.Topology.Muxes) {
				t.Errorf("the router lost a next hop: %s", line)
			}
		}
	}
	sent, lost, gap := s.finish(t)
	t.Logf("%d datagrams sent while four speakers were replaced, longest gap %s", sent, gap)
	if lost > 0 {
		t.Errorf("%d of %d datagrams were lost:\n%s", lost, sent, s.describe())
	}
}

// otherBuild makes a program of this commit with another version.
func otherBuild(t *testing.T, version string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shunt")
	build := exec.Command("go", "build", "-ldflags", "-X main.version="+version, "-o", file, "../../cmd/shunt")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return file
}

// formerVariable names the file of a previous build for TestWayBack. Without it, the test uses
// another build of this commit.
const formerVariable = "SHUNT_FORMER"

// TestWayBack moves muxes, hosts and the manager to a previous build that --check-program accepts,
// and back, one by one, while datagrams go to a VIP. No datagram is lost, and every node reports
// the build that it runs.
func TestWayBack(t *testing.T) {
	former := os.Getenv(formerVariable)
	if former == "" {
		former = otherBuild(t, "former")
	}
	echo := echoService("wayback", 42)
	echo.up(t)
	s := startStream(t, echo.targets())
	ctx := t.Context()
	t.Cleanup(func() { shared.Binary = program })
	for _, to := range []string{former, program} {
		for _, n := range shared.Topology.Nodes() {
			if n.Kind != lab.KindMux && n.Kind != lab.KindHost {
				continue
			}
			check := exec.Command(program, string(n.Kind), "--check-program", to, "--bpffs", shared.Pins(n.Name))
			if out, err := check.CombinedOutput(); err != nil || !strings.Contains(string(out), " can take over: pins in ") {
				t.Fatalf("%s: check %s: %v: %s", n.Name, to, err, out)
			}
			if err := shared.ReplaceAgent(ctx, n.Name, to); err != nil {
				t.Fatal(err)
			}
			s.awaitAnswers(t)
		}
		if err := shared.StopManager(ctx, "manager1"); err != nil {
			t.Fatal(err)
		}
		shared.Binary = to
		if err := shared.StartManager("manager1"); err != nil {
			t.Fatal(err)
		}
		await(t, "all nodes at the manager", func(ctx context.Context) error {
			nodes := status(ctx, t).GetNodes()
			for _, n := range nodes {
				if !n.GetConnected() {
					return fmt.Errorf("%s is away", n.GetName())
				}
			}
			if want := shared.Topology.Muxes + shared.Topology.Hosts.Count; len(nodes) != want {
				return fmt.Errorf("%d nodes of %d", len(nodes), want)
			}
			return nil
		})
		s.awaitAnswers(t)
	}
	echo.awaitHops(t, shared.Topology.Muxes)
	sent, lost, gap := s.finish(t)
	t.Logf("%d datagrams sent on the way back and forward, longest gap %s", sent, gap)
	if lost > 0 {
		t.Errorf("%d of %d datagrams were lost:\n%s", lost, sent, s.describe())
	}
}

// followRoutes follows the routes of the router's kernel. The returned function ends that and
// returns the changes.
func followRoutes(t *testing.T) func() []string {
	t.Helper()
	monitor := shared.Command("ip", "-o", "monitor", "route")
	var out bytes.Buffer
	monitor.Stdout = &out
	if err := shared.StartOn("router1", monitor); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		monitor.Process.Kill()
		monitor.Wait()
	})
	t.Cleanup(end)
	return func() []string {
		end()
		return strings.Split(out.String(), "\n")
	}
}

// speakerOf returns the process id of a mux's speaker.
func speakerOf(t *testing.T, node string) int {
	t.Helper()
	st, err := shared.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range st.Nodes {
		for _, p := range n.Processes {
			if n.Name == node && p.Name == "mux-speaker" {
				return p.Pid
			}
		}
	}
	t.Fatalf("%s has no speaker", node)
	return 0
}
