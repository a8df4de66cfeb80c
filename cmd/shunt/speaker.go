package main

import (
	"fmt"
	"log/slog"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/bgp/gobgp"
	"github.com/shuntlb/shunt/internal/bgp/remote"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
)

// bgpPort is the port on which routers open sessions (RFC 4271 section 8).
const bgpPort = 179

// newMuxSpeaker returns the command `shunt mux-speaker`, started by `shunt mux`.
func newMuxSpeaker() *cobra.Command {
	var run, bpffs string
	var hold time.Duration
	var restarting bool
	cmd := &cobra.Command{
		Use:    "mux-speaker",
		Short:  "Speak BGP and BFD for a mux agent",
		Long:   "Speak BGP and BFD for a mux agent. `shunt mux` starts it, and it outlives the agent's restarts.",
		Hidden: true,
		Args:   cobra.NoArgs,
	}
	fl := cmd.Flags()
	fl.StringVar(&run, "run", defaultMuxRun, "run directory, shared with the agent")
	fl.StringVar(&bpffs, "bpffs", defaultMuxPins, "directory of the data plane's pins")
	fl.DurationVar(&hold, "hold", defaultSpeakerHold, "how long routes stay while no agent is there")
	fl.BoolVar(&restarting, strings.TrimPrefix(remote.RestartingFlag, "--"), false, "a speaker before this one ended without closing its sessions: routers keep its routes")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if hold <= 0 {
			return usagef("--hold: %v: must be above 0", hold)
		}
		// The agent's stderr may be a pipe that closes before the speaker ends.
		signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
		log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)).With("process", "speaker")
		if how, err := remote.Schedule(); err != nil {
			log.Warn("no real-time scheduling for BGP and BFD: sessions may be lost when all CPUs are busy", "scheduled", how, "error", err)
		} else {
			log.Info("real-time scheduling for BGP and BFD", "scheduled", how)
		}
		err := remote.Serve(cmd.Context(), remote.ServerOptions{
			RunDir: run, Hold: hold, Clock: clock.System{}, Log: log, Version: version, Commit: commit(),
			Speaker:  gobgp.New(gobgp.Options{ListenPort: bgpPort, Restarting: restarting, Logger: log}),
			Attached: func() (bool, error) { return dataplane.MuxAttached(bpffs) },
		})
		if err != nil {
			return fmt.Errorf("run speaker: %w", err)
		}
		return nil
	}
	return cmd
}
