package main

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/bench"
	"github.com/shuntlb/shunt/internal/bench/checker"
)

// newBenchChecker returns the command of the process that probes for `shunt bench health`. Its
// flags are those of checker.Job.Args.
func newBenchChecker() *cobra.Command {
	var job checker.Job
	var first string
	var interval, timeout int
	cmd := &cobra.Command{
		Use:    bench.CheckerCommand,
		Short:  "Probe many servers, by orders from standard input (used by bench)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if job.First, err = netip.ParseAddr(first); err != nil || !job.First.Is4() {
				return usagef("--first: %q: must be an IPv4 address", first)
			}
			if job.Kind != checker.TCP && job.Kind != checker.HTTP {
				return usagef("--kind: %q: must be %s or %s", job.Kind, checker.TCP, checker.HTTP)
			}
			job.Interval, job.Timeout = time.Duration(interval)*time.Millisecond, time.Duration(timeout)*time.Millisecond
			return checker.Serve(cmd.Context(), job, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&job.Engine, "engine", "", "what probes")
	flags.StringVar(&job.Kind, "kind", checker.TCP, fmt.Sprintf("kind of the probes: %s or %s", checker.TCP, checker.HTTP))
	flags.StringVar(&first, "first", "", "IPv4 `address` of the first target; the others follow it")
	flags.Uint16Var(&job.Port, "port", 80, "port of all targets")
	flags.IntVar(&job.Targets, "targets", 0, "number of targets")
	flags.IntVar(&interval, "interval-ms", 5000, "time between two probes of a target, in ms")
	flags.IntVar(&timeout, "timeout-ms", 2000, "most time that a probe may take, in ms")
	flags.IntVar(&job.InFlight, "in-flight", 1, "most connections at a time, where each probe has one")
	flags.StringVar(&job.Device, "device", "", "network device that leads to the targets")
	flags.StringVar(&job.Pins, "pins", "", "`directory` below the BPF filesystem for programs that have to be pinned")
	return cmd
}
