package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/lab"
)

// newLabDemo returns the command `shunt lab demo`.
func newLabDemo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Bring a lab up, send real traffic through it, break things, and judge what the clients noticed",
		Long: "Bring a lab up, send real HTTP through its VIPs over both families, and under that traffic kill a mux,\n" +
			"restart another's agent, stop a server, add one and drain one. Prints what the clients noticed of each\n" +
			"and a verdict; exit code 1 when a rule was broken. A lab of the same name is removed first.",
		Args: cobra.NoArgs,
	}
	name := labName(cmd)
	keep := cmd.Flags().Bool("keep", false, "leave the lab up and print what to try next")
	short := cmd.Flags().Bool("short", false, "watch every event half as long")
	daemon := cmd.Flags().String("daemon", string(lab.FRR), "routing daemon, frr or bird")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		t := lab.DemoTopology()
		t.Name, t.Routers.Daemon = *name, lab.Daemon(*daemon)
		if err := t.Validate(); err != nil {
			return usageError{err}
		}
		screen := lab.NewScreen(cmd.OutOrStdout())
		if err := lab.Down(cmd.Context(), t.Name); err != nil {
			return err
		}
		if !*keep {
			defer func() { // also after an interrupt
				err = errors.Join(err, lab.Down(context.WithoutCancel(cmd.Context()), t.Name))
			}()
		}
		screen.Line("lab %s: %s", t.Name, describeTopology(t))
		started := time.Now()
		l, err := lab.Up(cmd.Context(), t, lab.Options{Progress: func(line string) { screen.Line("  %s", line) }})
		if err != nil {
			return err
		}
		screen.Line("lab %s: up after %.1f s", t.Name, time.Since(started).Seconds())
		err = lab.Demo(cmd.Context(), l, lab.DemoOptions{Screen: screen, Short: *short})
		if *keep {
			printNext(cmd.OutOrStdout(), os.Args[0], t.Name)
		}
		return err
	}
	return cmd
}

// printNext prints commands to try in a lab that the demo left up. program is the path of this
// program.
func printNext(w io.Writer, program, name string) {
	v4, v6 := lab.VIPAddresses(10)
	fmt.Fprintf(w, `
The lab is still up. Try:
  %[5]s lab status --name %[1]s
  %[5]s lab exec --name %[1]s client1 -- curl -s http://%[2]s/
  %[5]s lab exec --name %[1]s client1 -- curl -s 'http://[%[3]s]/'
  %[5]s trace --lab %[1]s --from 198.51.100.11:40000 --to %[2]s:80
  %[5]s describe service web --lab %[1]s
  %[5]s describe node mux1 --lab %[1]s
  %[5]s apply --lab %[1]s -f %[4]s/web.yaml      # change it first: a weight, another backend
  %[5]s lab exec --name %[1]s router1 -- ip route show %[2]s
  %[5]s lab exec --name %[1]s mux1 -- tcpdump -ni eth0 -c 10
  less %[4]s/mux1/log
and when you are done:
  %[5]s lab down --name %[1]s
`, name, v4, v6, lab.Dir(name), program)
}
