package main

import (
	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/bench"
	"github.com/shuntlb/shunt/internal/lb"
)

// newBenchSNATManager is a manager of `shunt bench snat`: it takes what users' managers refuse as long as the data plane lacks its part.
func newBenchSNATManager() *cobra.Command {
	return &cobra.Command{
		Use:                bench.SNATManagerCommand,
		Short:              "Be a manager that takes snat (used by bench)",
		Hidden:             true,
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			lb.SNAT = true
			root := cmd.Root()
			root.SetArgs(append([]string{"manager"}, args...))
			return root.ExecuteContext(cmd.Context())
		},
	}
}
