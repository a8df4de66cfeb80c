package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/bench"
	"github.com/shuntlb/shunt/internal/bench/swarm"
)

// newBenchSwarm returns the command of the process that simulates nodes for `shunt bench nodes`.
func newBenchSwarm() *cobra.Command {
	return &cobra.Command{
		Use:    bench.SwarmCommand,
		Short:  "Be many nodes, by orders from standard input (used by bench)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelError}))
			return swarm.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), log)
		},
	}
}
