// Package compare measures two builds of Shunt in turns on one machine and returns how their
// figures differ.
package compare

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/shuntlb/shunt/internal/bench"
)

// Measure runs one case of a suite with a build and returns its compared figures. It returns
// ErrNoCase if the build does not have the case.
type Measure func(ctx context.Context, b Build, s bench.Suite, name string) (map[Figure]float64, error)

// ErrNoCase is returned for a case that a build does not have.
var ErrNoCase = errors.New("the build does not have this case")

// Build is one of the two builds.
type Build int

// The builds, in the order in which a round runs them: the base, and the build that is judged.
const (
	Base Build = iota
	Present
)

// String returns the build's name in messages.
func (b Build) String() string { return [...]string{"base", "present"}[b] }

// Options configure a comparison.
type Options struct {
	Suites []bench.Suite
	// Cases restricts the run to these. If it is empty, the run takes all cases of the suites
	// except those that must be named because they take long.
	Cases []string
	// Rounds is how often each case runs with each build. A case whose ratio is above Limit runs as
	// often again.
	Rounds int
	// Limit is the largest ratio that needs no reason.
	Limit   float64
	Reasons []Reason
	// Progress receives a line of text when a case begins.
	Progress func(string)
}

// Result is a figure of both builds.
type Result struct {
	Figure
	// Base and Present are medians over the rounds.
	Base, Present float64
	// Ratio is the median over the rounds of how much worse the present build is: 1.2 is 20 %
	// slower. It is +Inf if the base measured 0 and the present build did not.
	Ratio  float64
	Rounds int
	// Worse means that the ratio is above the limit. Reason is the documented reason, if there is
	// one.
	Worse  bool
	Reason string
}

// Failed returns true if the figure is worse and no reason explains it.
func (r Result) Failed() bool { return r.Worse && r.Reason == "" }

// Missing is a case that was not compared.
type Missing struct {
	Suite, Case string
	Why         string
}

// Run measures the cases of all suites with both builds in turns. Results are in the order of
// suites and cases. A case that fails is missing, and the others continue. The error joins the
// errors of all failed cases. The end of ctx ends the run.
func Run(ctx context.Context, o Options, m Measure) (results []Result, missing []Missing, err error) {
	var failed []error
	for _, s := range o.Suites {
		for _, name := range s.Cases {
			if len(o.Cases) > 0 && !slices.Contains(o.Cases, name) || len(o.Cases) == 0 && s.OnlyByName(name) {
				continue
			}
			of, err := runCase(ctx, o, m, s, name)
			if errors.Is(err, ErrNoCase) {
				missing = append(missing, Missing{s.Name, name, err.Error()})
				continue
			}
			if ctx.Err() != nil {
				return results, missing, errors.Join(append(failed, err)...)
			}
			if err != nil {
				failed = append(failed, err)
				missing = append(missing, Missing{s.Name, name, "it failed"})
				continue
			}
			if len(of) == 0 {
				missing = append(missing, Missing{s.Name, name, "it has no figure that is compared"})
			}
			results = append(results, of...)
		}
	}
	return results, missing, errors.Join(failed...)
}

// runCase measures one case: o.Rounds rounds, and as many again if a figure is worse after them.
func runCase(ctx context.Context, o Options, m Measure, s bench.Suite, name string) ([]Result, error) {
	var rounds [][2]map[Figure]float64
	for {
		for range o.Rounds {
			var round [2]map[Figure]float64
			for _, b := range []Build{Base, Present} {
				o.Progress(fmt.Sprintf("%s %s: round %d, %s", s.Name, name, len(rounds)+1, b))
				figures, err := m(ctx, b, s, name)
				if err != nil {
					return nil, fmt.Errorf("suite %s case %s: %s: %w", s.Name, name, b, err)
				}
				round[b] = figures
			}
			rounds = append(rounds, round)
		}
		results := judge(o, compared(s), rounds)
		if len(rounds) > o.Rounds || !slices.ContainsFunc(results, Result.Failed) {
			return results, nil
		}
	}
}

// judge returns the results of one case's rounds. Figures that a round lacks are left out.
func judge(o Options, moreIsBetter map[string]bool, rounds [][2]map[Figure]float64) (out []Result) {
	for _, f := range slices.SortedFunc(maps.Keys(rounds[0][Base]), compareFigures) {
		var base, present, ratios []float64
		for _, round := range rounds {
			b, inBase := round[Base][f]
			p, inPresent := round[Present][f]
			if !inBase || !inPresent {
				break
			}
			base, present = append(base, b), append(present, p)
			if moreIsBetter[f.Field] {
				b, p = p, b
			}
			ratios = append(ratios, ratio(b, p))
		}
		if len(ratios) < len(rounds) {
			continue
		}
		r := Result{Figure: f, Base: bench.Median(base), Present: bench.Median(present), Ratio: bench.Median(ratios), Rounds: len(rounds)}
		if r.Worse = r.Ratio > o.Limit; r.Worse {
			if i := slices.IndexFunc(o.Reasons, func(w Reason) bool { return w.covers(f, r.Ratio) }); i >= 0 {
				r.Reason = o.Reasons[i].Reason
			}
		}
		out = append(out, r)
	}
	return out
}

// ratio returns present divided by base. Two figures of 0 are equal.
func ratio(base, present float64) float64 {
	switch {
	case base == present:
		return 1
	case base <= 0:
		return math.Inf(1)
	}
	return present / base
}

// Suites returns the suites that a comma-separated list names, or all suites for an empty list.
func Suites(names string) ([]bench.Suite, error) {
	if names == "" {
		return bench.Suites(), nil
	}
	var out []bench.Suite
	for _, name := range strings.Split(names, ",") {
		s, err := bench.Find(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}
