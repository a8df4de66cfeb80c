package main

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/lab"
)

// newLabServer is the hidden command that runs in a lab's virtual machines.
func newLabServer() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "lab-server",
		Short:  "Serve HTTP and echo as the servers of a lab do",
		Hidden: true,
		Args:   cobra.NoArgs,
	}
	name := cmd.Flags().String("name", "", "name to answer with")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return lab.Serve(cmd.Context(), *name) }
	return cmd
}

// newLabLoad is the hidden command that runs on a lab's clients.
func newLabLoad() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "lab-load ADDRESS:PORT…",
		Short:  "Send HTTP requests at a fixed rate, each over a new connection, and print JSON lines",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
	}
	o := lab.LoadOptions{}
	cmd.Flags().IntVar(&o.Rate, "rate", 100, "requests per second over all targets")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 500*time.Millisecond, "time after which a request has failed")
	cmd.Flags().DurationVar(&o.ReportEvery, "report", time.Second, "time between two lines of totals")
	control := cmd.Flags().Bool("control", false, "begin a window at every line of standard input, and end with it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Targets = args
		var marks io.Reader
		if *control {
			marks = cmd.InOrStdin()
		}
		return lab.Load(cmd.Context(), o, marks, cmd.OutOrStdout())
	}
	return cmd
}
