package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
)

// Exit codes of every subcommand.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a fault of the command line: exit code 2.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// usagef makes a usageError.
func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// verboseUsage describes the flag --verbose of commands that load programs.
const verboseUsage = "log more, and the whole log of the kernel's verifier when it refuses a program"

// errSilent is a failure that has already been reported: exit code 1 and no message.
var errSilent = errors.New("failed")

// run executes one command line and returns the exit code. Every line of an error begins with the
// command.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return runAt(time.Now, args, stdin, stdout, stderr)
}

// runAt is run with the clock now.
func runAt(now func() time.Time, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process immediately.
	context.AfterFunc(ctx, stop)
	root := newRootAt(now)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !errors.Is(err, errSilent) {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintf(stderr, "%s: %s\n", cmd.CommandPath(), strings.TrimSuffix(line, "\n"))
		}
		if verbose, err2 := cmd.Flags().GetBool("verbose"); err2 == nil && verbose {
			fmt.Fprint(stderr, dataplane.VerifierLog(err))
		}
	}
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

// newRoot builds a new command tree, so that tests can run commands in parallel.
func newRoot() *cobra.Command { return newRootAt(time.Now) }

// newRootAt is newRoot with the clock now.
func newRootAt(now func() time.Time) *cobra.Command {
	g := &globals{format: formatTable, now: now}
	root := &cobra.Command{
		Use:   "shunt",
		Short: "A cloud-scale, multi-tenant layer-4 load balancer for Linux",
		Long: "Shunt is a layer-4 load balancer: a manager keeps the wanted state, muxes spread connections by XDP,\n" +
			"hosts deliver them and answer directly. This one binary is all of them, and their command line.\n\n" +
			"Exit codes: 0 done, 1 failed, 2 wrong usage.",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		// Runs after the arguments were checked, before cobra checks flags with errors of its own
		// kind.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			g.note = func(text string) { fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", cmd.CommandPath(), text) }
			if err := cmd.ValidateRequiredFlags(); err != nil {
				return usageError{err}
			}
			if err := cmd.ValidateFlagGroups(); err != nil {
				return usageError{err}
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate(versionTemplate())
	g.register(root.PersistentFlags())
	// One line per subcommand, each made in its own file.
	root.AddCommand(newApply(g))
	root.AddCommand(newDiff(g))
	root.AddCommand(newCheck(g))
	root.AddCommand(newDelete(g))
	root.AddCommand(newGet(g))
	root.AddCommand(newDescribe(g))
	root.AddCommand(newDrain(g, true))
	root.AddCommand(newDrain(g, false))
	root.AddCommand(newTop(g))
	root.AddCommand(newTrace(g))
	root.AddCommand(newCapture(g))
	root.AddCommand(newRotate(g))
	root.AddCommand(newRelease(g))
	root.AddCommand(newToken(g))
	root.AddCommand(newAccess(g))
	root.AddCommand(newMember(g))
	root.AddCommand(newAudit(g))
	root.AddCommand(newBackup(g), newVerify(g), newRestore(g))
	root.AddCommand(newMux(), newMuxSpeaker())
	root.AddCommand(newHost())
	root.AddCommand(newDoctor(g))
	root.AddCommand(newVersion(g))
	root.AddCommand(newManager())
	root.AddCommand(newRun())
	root.AddCommand(newBench(g))
	root.AddCommand(newBenchSwarm())
	root.AddCommand(newBenchChecker())
	root.AddCommand(newSim(g))
	root.AddCommand(newLab(g))
	root.AddCommand(newLabServer(), newLabServerQUIC(), newLabQUIC(), newLabLoad())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	checkArguments(root)
	return root
}

// checkArguments makes wrong arguments of every command a usageError, including missing
// subcommands.
func checkArguments(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		checkArguments(child)
	}
	check := cmd.Args
	switch {
	case cmd.HasSubCommands() && !cmd.Runnable():
		check = subcommand
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	case cmd.Name() == "help":
		check = helpTopic
	case check == nil:
		check = needs()
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil || errors.As(err, new(usageError)) {
			return err
		}
		return usageError{err}
	}
}

// needs requires one argument for each of names.
func needs(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) > len(names) && len(names) == 0:
			return usagef("takes no arguments, not %q", args[0])
		case len(args) != len(names):
			return usagef("needs %s, not %d arguments", strings.Join(names, " and "), len(args))
		}
		return nil
	}
}

// helpTopic refuses help on an unknown command.
func helpTopic(cmd *cobra.Command, args []string) error {
	_, rest, err := cmd.Root().Find(args)
	if err != nil || len(rest) > 0 {
		return usagef("%q: must be a command%s", strings.Join(args, " "), lb.MeantFor(args[len(args)-1], commandNames(cmd.Root())))
	}
	return nil
}

// commandNames returns the names of the commands below cmd that help shows.
func commandNames(cmd *cobra.Command) (names []string) {
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	return names
}

// subcommand refuses a group of commands without a known subcommand. The bare root prints its help.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && !cmd.HasParent() {
		return nil
	}
	names := commandNames(cmd)
	if len(args) == 0 {
		return usagef("needs a subcommand: %s", strings.Join(names, ", "))
	}
	cmd.SuggestionsMinimumDistance = 2
	near := cmd.SuggestionsFor(args[0])
	if best := lb.Near(args[0], names); best != "" && !slices.Contains(near, best) {
		near = append(near, best)
	}
	if len(near) > 0 {
		return usagef("unknown command %q, did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return usagef("unknown command %q, must be one of %s", args[0], strings.Join(names, ", "))
}
