package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/capture"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lab"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/mux"
)

type captureFlags struct {
	file, run, node, protocol string
	snaplen                   int
	count                     uint64
	duration                  time.Duration
	sent                      bool
}

// newCapture returns the command `shunt capture`.
func newCapture(g *globals) *cobra.Command {
	var f captureFlags
	cmd := &cobra.Command{
		Use:   "capture VIP[:PORT]",
		Short: "Show packets to a VIP with what the mux on this machine did with each",
		Long: "Capture shows the packets that a mux gets for a VIP, and the mux's verdict on each: forwarded or the reason why\n" +
			"not, service, backend, outer destination. With -w it writes pcapng with the verdict as the comment of each\n" +
			"packet, which tcpdump, tshark and Wireshark read.\n\n" +
			"It asks the mux's agent on this machine, so it needs its user's rights. While a capture runs, the agent puts a\n" +
			"program that watches in the place of the usual one, in one step and back at the end, also when this command is\n" +
			"killed: no packet is lost by it. Captured packets cost about 0.3 µs more, others 0.04; what cannot be\n" +
			"read in time is forwarded all the same and counted as lost. One capture runs at a time.\n\n" +
			"PORT may be a range or \"*\", every packet that has ports; without one, ICMP and fragments are captured too.\n" +
			"With --lab NAME --node mux1 it captures on a mux of a lab.",
		Example: "  shunt capture 203.0.113.10:80 --count 20\n" +
			"  shunt capture 203.0.113.10 -w vip.pcapng --duration 10s\n" +
			"  shunt capture 203.0.113.10:80 --sent -w - | tshark -r - -T fields -e frame.comment\n" +
			"  shunt capture [2001:db8:f::10]:53 --protocol udp --lab demo --node mux1",
		Args: needs("VIP[:PORT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := f.request(args[0])
			if err != nil {
				return err
			}
			dir, err := f.runDir(g.lab)
			if err != nil {
				return err
			}
			return f.capture(cmd.Context(), dir, request, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.file, "write", "w", "", "`file` to write pcapng to, - for standard output (default: print a line per packet)")
	fl.Uint64Var(&f.count, "count", 0, "end after so many packets (default: none)")
	fl.DurationVar(&f.duration, "duration", 0, "end after so long (default: when interrupted)")
	fl.IntVar(&f.snaplen, "snaplen", 256, fmt.Sprintf("bytes kept of a packet, at most %d", dataplane.MaxSnaplen))
	fl.StringVar(&f.protocol, "protocol", "", "only packets of this protocol, tcp or udp")
	fl.BoolVar(&f.sent, "sent", false, "show packets as they were sent, too, with their outer headers")
	fl.StringVar(&f.run, "run", defaultMuxRun, "run directory of the mux's agent")
	fl.StringVar(&f.node, "node", "mux1", "mux of the lab that --lab names")
	return cmd
}

func (f *captureFlags) request(target string) (mux.CaptureRequest, error) {
	r := mux.CaptureRequest{Protocol: f.protocol, Snaplen: f.snaplen, Sent: f.sent, Count: f.count, Duration: f.duration}
	var err error
	if r.VIP, r.Port, err = parseTarget(target); err != nil {
		return r, usageError{err}
	}
	if f.protocol != "" && f.protocol != lb.TCP.String() && f.protocol != lb.UDP.String() {
		return r, usagef("--protocol: %q: must be tcp or udp", f.protocol)
	}
	if f.snaplen < 1 || f.snaplen > dataplane.MaxSnaplen {
		return r, usagef("--snaplen: %d: must be 1 to %d", f.snaplen, dataplane.MaxSnaplen)
	}
	if f.duration < 0 {
		return r, usagef("--duration: %v: must not be negative", f.duration)
	}
	return r, nil
}

// runDir returns the run directory of the agent to capture at.
func (f *captureFlags) runDir(labName string) (string, error) {
	if labName == "" {
		return f.run, nil
	}
	l, err := lab.Open(labName, lab.Options{})
	if err != nil {
		return "", err
	}
	n, err := l.Topology.Find(f.node)
	if err != nil {
		return "", usagef("--node: %v", err)
	}
	if n.Kind != lab.KindMux {
		return "", usagef("--node: %q: must be a mux", f.node)
	}
	return l.RunDir(n.Name), nil
}

// capture copies or prints packets until the end, and prints their count.
func (f *captureFlags) capture(ctx context.Context, dir string, request mux.CaptureRequest, stdout, stderr io.Writer) error {
	use := capture.Print
	if f.file == "-" {
		use = capture.Copy
	} else if f.file != "" {
		file, err := os.Create(filepath.Clean(f.file))
		if err != nil {
			return fmt.Errorf("--write: %w", err)
		}
		defer file.Close()
		use, stdout = capture.Copy, file
	}
	totals, err := mux.Capture(ctx, dir, request, func(in io.Reader) (capture.Totals, error) { return use(stdout, in) })
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "packets: %d", totals.Packets)
	if totals.Lost > 0 {
		fmt.Fprintf(stderr, ", lost: %d (a port, a smaller --snaplen or --write may help)", totals.Lost)
	}
	fmt.Fprintln(stderr)
	return nil
}
