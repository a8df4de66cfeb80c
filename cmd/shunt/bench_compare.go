package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/shuntlb/shunt/internal/bench"
	"github.com/shuntlb/shunt/internal/bench/compare"
)

// compareFlags holds the flags of `shunt bench compare`.
type compareFlags struct {
	base, suites, reasons, lab string
	cases                      []string
	rounds                     int
	limit                      float64
	short                      bool
}

// newBenchCompare returns the command `shunt bench compare`.
func newBenchCompare(g *globals) *cobra.Command {
	var f compareFlags
	cmd := &cobra.Command{
		Use:   "compare --base PROGRAM",
		Short: "Compare the figures of another build with this one's",
		Long: "Compare the figures of another build with this one's. Root only.\n\n" +
			"Runs each case with both builds in turns and prints, for every figure, the medians and the median ratio: 1.20 is 20 % worse. " +
			"A case with a figure above the limit runs as often again. Exits with 1 if a figure is above the limit and the file of reasons " +
			"does not explain it, or a case fails; the others go on. A case that the other build does not have is listed, not compared. " +
			"`make bench-compare BASE=COMMIT` builds the other program.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runBenchCompare(cmd, g, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.base, "base", "", "the other build: a shunt `program`")
	flags.StringVar(&f.suites, "suites", "", "suites to run, separated by commas; all by default")
	flags.StringSliceVar(&f.cases, "case", nil, "only these cases")
	flags.IntVar(&f.rounds, "rounds", 3, "how often each case runs with each build, 1 to 100")
	flags.Float64Var(&f.limit, "limit", 1.10, "largest ratio that needs no reason")
	flags.StringVar(&f.reasons, "reasons", "docs/bench-reasons.yaml", "`file` with the reasons for figures that became worse; empty for none")
	flags.StringVar(&f.lab, "name", "bench", "name of the lab that is made and removed")
	flags.BoolVar(&f.short, "short", false, "every step once, as a smoke test: the ratios are worth nothing")
	return cmd
}

// options checks the flags.
func (f compareFlags) options() (o compare.Options, err error) {
	if f.base == "" {
		return o, usagef("--base: is missing: the program of the other build")
	}
	if f.rounds < 1 || f.rounds > 100 {
		return o, usagef("--rounds: %d: must be 1 to 100", f.rounds)
	}
	if !(f.limit >= 1) || math.IsInf(f.limit, 0) {
		return o, usagef("--limit: %v: must be at least 1", f.limit)
	}
	o = compare.Options{Cases: f.cases, Rounds: f.rounds, Limit: f.limit}
	if o.Suites, err = compare.Suites(f.suites); err != nil {
		return o, usageError{fmt.Errorf("--suites: %w", err)}
	}
	for _, c := range f.cases {
		known := false
		for _, s := range o.Suites {
			known = known || s.Check([]string{c}) == nil
		}
		if !known {
			return o, usagef("--case: %q: is in none of the suites", c)
		}
	}
	if f.reasons != "" {
		text, err := os.ReadFile(f.reasons)
		if err != nil {
			return o, fmt.Errorf("--reasons: %w", err)
		}
		if o.Reasons, err = compare.ReadReasons(text); err != nil {
			return o, fmt.Errorf("--reasons: %s: %w", f.reasons, err)
		}
	}
	return o, nil
}

func runBenchCompare(cmd *cobra.Command, g *globals, f compareFlags) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	if g.format == formatYAML {
		return usagef("-o yaml: must be table or json")
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("loading programs and making namespaces needs root: run it as root")
	}
	if _, err := exec.LookPath(f.base); err != nil {
		return fmt.Errorf("--base: %s: cannot be run: %w", f.base, err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	o.Progress = benchProgress(cmd.ErrOrStderr())
	programs := compare.Programs{Paths: [2]string{f.base, self}, LabName: f.lab, Short: f.short}
	var results []compare.Result
	var errs []error
	for _, suite := range o.Suites { // one by one, to print the results of each when it ends
		one := o
		one.Suites = []bench.Suite{suite}
		some, missing, err := compare.Run(cmd.Context(), one, programs.Measure)
		results, errs = append(results, some...), append(errs, err)
		if len(some)+len(missing) > 0 {
			errs = append(errs, writeCompared(cmd.OutOrStdout(), g.format, some, missing))
		}
		if cmd.Context().Err() != nil {
			break
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	failed := 0
	for _, r := range results {
		if r.Failed() {
			failed++
		}
	}
	switch {
	case len(results) == 0:
		return fmt.Errorf("no figure was compared")
	case failed > 0:
		return fmt.Errorf("%d of %d figures are more than %g times the base's without a written reason", failed, len(results), f.limit)
	}
	return nil
}

// comparedLine is a figure as `-o json` prints it.
type comparedLine struct {
	Suite   string  `json:"suite"`
	Case    string  `json:"case"`
	Of      string  `json:"of,omitempty"`
	Field   string  `json:"field"`
	Base    float64 `json:"base"`
	Present float64 `json:"present"`
	// Ratio is null if the base measured 0 and the current build did not.
	Ratio  *float64 `json:"ratio"`
	Rounds int      `json:"rounds"`
	Result string   `json:"result"`
	Reason string   `json:"reason,omitempty"`
}

// writeCompared prints figures and the cases that were not compared.
func writeCompared(w io.Writer, f format, results []compare.Result, missing []compare.Missing) error {
	if f == formatJSON {
		out := json.NewEncoder(w)
		for _, r := range results {
			line := comparedLine{Suite: r.Suite, Case: r.Case, Of: r.Of, Field: r.Field, Base: r.Base, Present: r.Present, Rounds: r.Rounds, Result: comparedWord(r), Reason: r.Reason}
			if !math.IsInf(r.Ratio, 0) {
				line.Ratio = &r.Ratio
			}
			if err := out.Encode(line); err != nil {
				return err
			}
		}
		for _, m := range missing {
			if err := out.Encode(map[string]string{"suite": m.Suite, "case": m.Case, "result": "not compared", "reason": m.Why}); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SUITE\tCASE\tFIGURE\tBASE\tPRESENT\tRATIO\tRESULT")
	for _, r := range results {
		figure := r.Field
		if r.Of != "" {
			figure += " (" + r.Of + ")"
		}
		word := comparedWord(r)
		if r.Reason != "" {
			word += ": " + r.Reason
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.4g\t%.4g\t%.2f\t%s\n", r.Suite, r.Case, figure, r.Base, r.Present, r.Ratio, word)
	}
	for _, m := range missing {
		fmt.Fprintf(t, "%s\t%s\t–\t–\t–\t–\tnot compared: %s\n", m.Suite, m.Case, m.Why)
	}
	return t.Flush()
}

// comparedWord returns the verdict on a figure.
func comparedWord(r compare.Result) string {
	switch {
	case r.Failed():
		return "worse"
	case r.Worse:
		return "worse, explained"
	}
	return "ok"
}
