package main

import (
	"io"
	"log/slog"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/lab"
)

// newLabServer returns the hidden command that runs in a lab's virtual machines.
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

// newLabServerQUIC returns the hidden command that runs in a lab's virtual machines for tests of
// QUIC.
func newLabServerQUIC() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "lab-server-quic",
		Short:  "Serve HTTP/3 as the servers of a lab do",
		Hidden: true,
		Args:   cobra.NoArgs,
	}
	o := lab.QUICOptions{}
	cmd.Flags().StringVar(&o.Name, "name", "", "name to answer with")
	cmd.Flags().StringVar(&o.Network, "network", "udp", "udp, udp4 or udp6")
	cmd.Flags().IntVar(&o.Port, "port", lab.QUICPort, "UDP port")
	cmd.Flags().StringVar(&o.Config, "config", "", "file with what connection ids are made of; it is followed")
	cmd.Flags().BoolVar(&o.Retry, "retry", false, "have each client prove its address first")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
		return lab.ServeQUIC(cmd.Context(), o)
	}
	return cmd
}

// newLabQUIC returns the hidden command that runs on a lab's clients for tests of QUIC.
func newLabQUIC() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "lab-quic ADDRESS:PORT",
		Short:  "Download over HTTP/3 without end, move to another port at each line \"move\" of standard input, and print JSON lines",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
	}
	o := lab.QUICClientOptions{}
	from := cmd.Flags().StringSlice("from", nil, "the client's own addresses, taken in turn")
	cmd.Flags().IntVar(&o.Names, "names", 0, "ALPN protocols to offer beside h3, for a long ClientHello")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if o.Target, err = netip.ParseAddrPort(args[0]); err != nil {
			return err
		}
		for _, text := range *from {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return err
			}
			o.From = append(o.From, a)
		}
		return lab.QUICClient(cmd.Context(), o, cmd.InOrStdin(), cmd.OutOrStdout())
	}
	return cmd
}

// newLabLoad returns the hidden command that runs on a lab's clients.
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
