package lab_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/capture"
	"github.com/shuntlb/shunt/internal/mux"
)

// Captures start and end, normally and by kill -9 of their client, without the loss of a packet.
func TestCaptureLosesNothing(t *testing.T) {
	logsOnFailure(t, shared)
	echo := echoService("capture", 61)
	echo.up(t)
	s := startStream(t, echo.targets())
	vip := echo.vips()[0]
	for i := range 6 {
		request := mux.CaptureRequest{VIP: vip, Port: "7", Snaplen: 96, Sent: true, Count: 20}
		var text strings.Builder
		totals, err := mux.Capture(t.Context(), shared.RunDir("mux1"), request, func(in io.Reader) (capture.Totals, error) { return capture.Print(&text, in) })
		if err != nil || totals.Packets != 40 || totals.Lost != 0 {
			t.Fatalf("capture %d: %+v, %v", i, totals, err)
		}
		for line := range strings.Lines(text.String()) {
			if !strings.Contains(line, "verdict=forwarded ") || !strings.Contains(line, " service=capture endpoint=udp/203.0.113.61:7 backend=10.20.") {
				t.Errorf("capture says: %s", line)
			}
		}
	}
	killCapture(t, vip)
	await(t, "the capture to end with its client", func(ctx context.Context) error {
		request := mux.CaptureRequest{VIP: vip, Snaplen: 96, Count: 1}
		_, err := mux.Capture(ctx, shared.RunDir("mux1"), request, func(in io.Reader) (capture.Totals, error) { return capture.Copy(io.Discard, in) })
		return err
	})
	s.awaitAnswers(t)
	sent, lost, gap := s.finish(t)
	t.Logf("%d datagrams sent while captures came and went, longest gap %s", sent, gap)
	if lost > 0 {
		t.Errorf("%d of %d datagrams were lost:\n%s", lost, sent, s.describe())
	}
}

// killCapture starts a capture by the command and kills it when it has written packets. tcpdump
// reads the file.
func killCapture(t *testing.T, vip netip.Addr) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "killed.pcapng")
	cmd := exec.Command(program, "--lab", shared.Topology.Name, "capture", vip.String(), "--node", "mux1", "-w", file)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "packets in the file", func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, "tcpdump", "-nr", file, "-c", "3").CombinedOutput()
		if err == nil && strings.Count(string(out), "> "+vip.String()+".7: UDP") < 3 {
			err = fmt.Errorf("tcpdump reads:\n%s", out)
		}
		return err
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Errorf("killed command ended well: %s", &stderr)
	}
}
