package lab_test

import (
	"context"
	"fmt"
	"testing"
)

// forwarded is what a mux sent to the members of a service, as the manager last heard it.
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

// An agent with other table sizes fills new tables while the old program forwards, then replaces it; another puts it back.
// Not one packet is lost, counters go on, and nothing that the speaker or a host says changes.
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

// speakerOf is the process id of a mux's speaker.
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
