package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/bench"
)

// benchAll selects every suite.
const benchAll = "all"

// benchKatran is the suite that can also measure Katran.
const benchKatran = "dataplane"

// benchFlags holds the flags of `shunt bench`.
type benchFlags struct {
	short  bool
	cases  []string
	write  string
	lab    string
	katran string
	rivals string
	soak   time.Duration
}

// newBench returns the command `shunt bench`.
func newBench(g *globals) *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench SUITE",
		Short: "Measure this machine's data plane, and a lab of its own",
		Long: "Measure this machine's data plane, and a lab of its own. Root only.\n\n" + describeSuites() +
			"\nWith -o json every finished case is one object on a line. Let nothing else run on the machine.",
		Args:      cobra.ExactArgs(1),
		RunE:      func(cmd *cobra.Command, args []string) error { return runBench(cmd, g, f, args[0]) },
		ValidArgs: suiteNames(),
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.short, "short", false, "every step once, as a smoke test: the figures are worth nothing")
	flags.StringSliceVar(&f.cases, "case", nil, "only these cases of the suite")
	flags.StringVar(&f.write, "write", "", "also write the suite's section of benchmarks.md and its plot into this `directory`; with --case only the rows of these cases")
	flags.StringVar(&f.lab, "name", "bench", "name of the lab that is made and removed")
	flags.StringVar(&f.katran, "katran", "", "measure Katran's balancer, built from its sources into this `object`, in turns with the mux (suite dataplane)")
	flags.StringVar(&f.rivals, "rivals", bench.DefaultRivals, "`directory` with the sources of the checkers that suite health measures beside Shunt's")
	cmd.AddCommand(newBenchCompare(g))
	flags.DurationVar(&f.soak, "soak", 30*time.Second, "how long each engine runs in case soak of suite health")
	return cmd
}

// suiteNames lists the suites.
func suiteNames() []string {
	names := []string{benchAll}
	for _, s := range bench.Suites() {
		names = append(names, s.Name)
	}
	return names
}

// describeSuites lists the suites with their cases and durations.
func describeSuites() string {
	var b strings.Builder
	for _, s := range bench.Suites() {
		fmt.Fprintf(&b, "  %-10s %s; about %s, --short %s\n", s.Name, strings.Join(s.Cases, ", "), s.Takes, s.TakesShort)
	}
	fmt.Fprintf(&b, "  %-10s all of them\n", benchAll)
	return b.String()
}

func runBench(cmd *cobra.Command, g *globals, f benchFlags, name string) error {
	suites, err := benchSuites(f, name)
	if err != nil {
		return usageError{err}
	}
	if f.short && f.write != "" {
		return usagef("--write: must not come with --short: its figures are worth nothing")
	}
	if f.write != "" {
		for _, s := range suites {
			if err := s.CheckWrite(f.cases); err != nil {
				return usageError{err}
			}
		}
	}
	if f.katran != "" && name != benchKatran {
		return usagef("--katran: must come with suite %s, not with %s", benchKatran, name)
	}
	if f.katran != "" && f.write != "" {
		return usagef("--katran: must not come with --write: the page's section is of Shunt alone")
	}
	if f.soak < 0 {
		return usagef("--soak: %s: must not be negative", f.soak)
	}
	if g.format == formatYAML {
		return usagef("-o yaml: must be table or json")
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("loading programs and making namespaces needs root: run it as root")
	}
	options := bench.Options{
		Short: f.short, Cases: f.cases, LabName: f.lab, Katran: f.katran, Rivals: f.rivals, Soak: f.soak,
		Progress: benchProgress(cmd.ErrOrStderr()),
		Note:     func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), "shunt bench: "+line) },
	}
	load := bench.ReadLoad() // before the run adds its own
	if text := bench.LoadText(load); text != "" {
		options.Note(text)
	}
	for _, s := range suites {
		takes := s.Takes
		if f.short {
			takes = s.TakesShort
		}
		options.Progress(fmt.Sprintf("suite %s: about %s", s.Name, takes))
		began := bench.ReadCPUTime()
		rows, err := benchSuite(cmd, g, s, options)
		if err != nil {
			return err
		}
		stolen := bench.ReadCPUTime().StolenSince(began)
		if text := bench.StolenText(stolen); text != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "shunt bench: suite %s: %s: compare within this run only\n", s.Name, text)
		}
		if err := benchWrite(f, s, rows, stolen, load); err != nil {
			return err
		}
	}
	return nil
}

// benchSuites returns the suites to run.
func benchSuites(f benchFlags, name string) ([]bench.Suite, error) {
	if name != benchAll {
		s, err := bench.Find(name)
		if err != nil {
			return nil, err
		}
		return []bench.Suite{s}, s.Check(f.cases)
	}
	if len(f.cases) > 0 {
		return nil, fmt.Errorf("--case: must come with one suite, not with %s", benchAll)
	}
	return bench.Suites(), nil
}

// benchSuite runs a suite and prints its rows: JSON row by row, a table at the end.
func benchSuite(cmd *cobra.Command, g *globals, s bench.Suite, o bench.Options) ([]bench.Row, error) {
	var rows []bench.Row
	var printed error
	err := s.Run(cmd.Context(), o, func(r bench.Row) {
		rows = append(rows, r)
		if g.format == formatJSON && printed == nil {
			printed = json.NewEncoder(cmd.OutOrStdout()).Encode(r)
		}
	})
	if err != nil {
		return rows, err
	}
	if g.format == formatTable {
		printed = bench.WriteTable(cmd.OutOrStdout(), rows)
	}
	return rows, printed
}

// benchWrite publishes a suite's rows if a directory is given.
func benchWrite(f benchFlags, s bench.Suite, rows []bench.Row, stolen, load float64) error {
	if f.write == "" {
		return nil
	}
	machine, err := bench.ThisMachine()
	if err != nil {
		return err
	}
	return bench.NewPage(f.write).Write(s, rows, bench.Taken{At: time.Now(), Machine: machine, Version: version, Stolen: stolen, Cases: f.cases, Load: load})
}

// benchProgress returns a function that prints each step if w is a terminal, and a no-op otherwise.
func benchProgress(w io.Writer) func(string) {
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return func(line string) { fmt.Fprintln(w, line) }
		}
	}
	return func(string) {}
}
