package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/agent"
	"github.com/shuntlb/shunt/internal/host"
)

// newHost is `shunt host`: the agent of a server.
func newHost() *cobra.Command {
	var o host.Options
	var stop bool
	cmd := &cobra.Command{
		Use:   "host --interface DEVICE --manager ADDRESS:PORT --token-file FILE",
		Short: "Run the agent of a server: decapsulation, translation, direct return",
		Long: "Run the agent of a server. It attaches two tcx programs to the interface by which tunnel packets come in and\n" +
			"answers leave. They stay attached when the agent ends, and the next one takes them over without losing a\n" +
			"packet; --stop takes them away.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if stop {
				return host.Stop(o.BPFFS, o.RunDir)
			}
			if err := hostFlags(&o); err != nil {
				return err
			}
			o.Node.Version = version
			o.Node.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return host.Run(cmd.Context(), o)
		},
	}
	registerNode(cmd, &o.Node, "host", &o.RunDir, &o.BPFFS)
	cmd.Flags().StringVar(&o.Interface, "interface", "", "uplink: where tunnel packets come in and answers leave")
	cmd.Flags().BoolVar(&stop, "stop", false, "detach the programs and forget all flows; the agent must not be running")
	return cmd
}

// hostFlags checks what is needed to run, and fills in the name.
func hostFlags(o *host.Options) error {
	if o.Interface == "" {
		return usagef("--interface: must name the uplink, such as eth0")
	}
	if o.Node.Manager == "" {
		return usagef("--manager: must be the manager's address, such as 10.99.0.11:8443")
	}
	if o.Node.Name != "" {
		return nil
	}
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("--name: read hostname: %w", err)
	}
	o.Node.Name = name
	return nil
}

// registerNode adds the flags that every node agent has.
func registerNode(cmd *cobra.Command, o *agent.Options, role string, runDir, bpffs *string) {
	f := cmd.Flags()
	f.StringVar(&o.Manager, "manager", "", "address of the manager, ADDRESS:PORT")
	f.StringVar(&o.TokenFile, "token-file", "", "file with a join token; needed until the node has joined")
	f.StringVar(&o.Name, "name", "", "name of the node (default: the hostname)")
	f.StringVar(&o.StateDir, "state", "/var/lib/shunt/"+role, "directory of the node's key, certificate and last plan")
	f.StringVar(runDir, "run", "/run/shunt/"+role, "directory of locks and sockets")
	f.StringVar(bpffs, "bpffs", "/sys/fs/bpf/shunt/"+role, "directory of the pinned programs and maps, on a bpf file system")
}
