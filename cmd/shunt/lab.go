package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/lab"
)

// newLab returns the command `shunt lab`.
func newLab(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Run a whole network of clients, router, muxes and hosts in namespaces of this machine",
		Long: "Run a whole network of clients, router, muxes and hosts in namespaces of this machine.\n\n" +
			"Namespaces are called NAME-client1, NAME-router1, NAME-mux1, NAME-host1, NAME-host1-vm1, NAME-manager1.\n" +
			"All of a lab's files, logs too, are under " + lab.Root + "/NAME. Root only.",
	}
	cmd.AddCommand(newLabUp(), newLabStatus(g), newLabExec(), newLabDown(), newLabDemo())
	return cmd
}

// labName adds the flag that names the lab.
func labName(cmd *cobra.Command) *string {
	name := lab.DefaultTopology().Name
	cmd.Flags().Var((*labNameValue)(&name), "name", "name of the lab, the prefix of its namespaces")
	return &name
}

// labNameValue is a flag that accepts only names of labs, because they become parts of paths.
type labNameValue string

// String implements pflag.Value.
func (v *labNameValue) String() string { return string(*v) }

// Type implements pflag.Value.
func (v *labNameValue) Type() string { return "string" }

// Set implements pflag.Value.
func (v *labNameValue) Set(s string) error {
	*v = labNameValue(s)
	return lab.CheckName(s)
}

// labProgress prints each step on stderr.
func labProgress(cmd *cobra.Command) func(string) {
	return func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
}

func newLabUp() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring a lab up; one that is up already is left as it is",
		Args:  cobra.NoArgs,
	}
	file := cmd.Flags().StringP("file", "f", "", "topology file (default: "+describeTopology(lab.DefaultTopology())+")")
	name := labName(cmd)
	daemon := cmd.Flags().String("daemon", "", "routing daemon, frr or bird, instead of the topology's")
	fabric := cmd.Flags().Bool("fabric", false, "only network, router and servers: no manager and no agents")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t, err := labTopology(*file)
		if err != nil {
			return err
		}
		if cmd.Flags().Changed("name") {
			t.Name = *name
		}
		if cmd.Flags().Changed("daemon") {
			t.Routers.Daemon = lab.Daemon(*daemon)
		}
		if err := t.Validate(); err != nil {
			return usageError{err}
		}
		_, err = lab.Up(cmd.Context(), t, lab.Options{Progress: labProgress(cmd), FabricOnly: *fabric})
		return err
	}
	return cmd
}

// describeTopology describes a topology in one line.
func describeTopology(t lab.Topology) string {
	return fmt.Sprintf("%d client, %d router (%s), %d muxes, %d hosts with %d virtual machine each, %d manager",
		t.Clients, t.Routers.Count, t.Routers.Daemon, t.Muxes, t.Hosts.Count, t.Hosts.VMs, t.Managers)
}

// labTopology reads a topology file, or returns the default if file is empty.
func labTopology(file string) (lab.Topology, error) {
	if file == "" {
		return lab.DefaultTopology(), nil
	}
	f, err := os.Open(file)
	if err != nil {
		return lab.Topology{}, err
	}
	defer f.Close()
	return lab.ParseTopology(f, file)
}

func newLabDown() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove a lab with its processes, namespaces, pins and files",
		Args:  cobra.NoArgs,
	}
	name := labName(cmd)
	all := cmd.Flags().Bool("all", false, "remove every lab, half-made ones too")
	cmd.MarkFlagsMutuallyExclusive("name", "all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		names := []string{*name}
		if *all {
			var err error
			if names, err = lab.Names(); err != nil {
				return err
			}
		}
		var errs []error
		for _, n := range names {
			errs = append(errs, lab.Down(cmd.Context(), n))
		}
		return errors.Join(errs...)
	}
	return cmd
}

func newLabExec() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec NODE -- COMMAND [ARG…]",
		Short: "Run a command on a node of a lab",
		Long: "Run a command on a node of a lab: client1, router1, mux1, host1, host1-vm1, manager1.\n" +
			"Flags stand before NODE. The exit code is the command's.",
		Args: cobra.MinimumNArgs(2),
	}
	name := labName(cmd)
	cmd.Flags().SetInterspersed(false)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		l, err := lab.Open(*name, lab.Options{})
		if err != nil {
			return err
		}
		argv := args[1:]
		if argv[0] == "--" {
			argv = argv[1:]
		}
		return l.Replace(args[0], argv)
	}
	return cmd
}
