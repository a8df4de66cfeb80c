package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Suite is a named set of cases that are measured together.
type Suite struct {
	Name  string
	Title string // heading in the published page
	About string // the measured figures, for the published page; one paragraph
	Cases []string
	// Takes and TakesShort are the approximate durations of a full and a short run.
	Takes, TakesShort time.Duration
	// Plotted are the fields in the plot, all in Unit.
	Plotted []string
	Unit    string
	// Unplotted are cases of another order of magnitude, which are in the table but not in the
	// plot.
	Unplotted []string
	// Series is the field whose values are the series of the plot, for a plot of one figure.
	// Without it, the series are fields.
	Series string
	// Goals are limits by case and field, published with the figures.
	Goals []Goal
	// curve, if not nil, is drawn in addition to the bars.
	curve *curve
	// timeline, if not nil, is drawn for a case whose rows are in no table.
	timeline *timeline
	// results, if not nil, is a separate page of the suite instead of all of these.
	results *results
	run     func(ctx context.Context, o Options, emit func(Row)) error
}

// Goal is a limit of a figure: Max, or Min if that is not 0.
type Goal struct {
	Case, Field string
	Max         float64
	Min         float64
	// None means that the figure must be 0. There is no other limit.
	None bool
	// Engine is the engine that the goal applies to, if a case has rows of several engines.
	Engine string
}

func atMost(name, field string, limit float64) Goal {
	return Goal{Case: name, Field: field, Max: limit}
}
func atLeast(name, field string, limit float64) Goal {
	return Goal{Case: name, Field: field, Min: limit}
}

func none(name, field string) Goal { return Goal{Case: name, Field: field, None: true} }

// of returns the goal for an engine.
func (g Goal) of(engine string) Goal {
	g.Engine = engine
	return g
}

// concerns reports whether the goal applies to a row.
func (g Goal) concerns(r Row) bool {
	return g.Case == r.Case && (g.Engine == "" || g.Engine == r.text(engineField))
}

// limit returns the figure in the goal.
func (g Goal) limit() float64 { return cmp.Or(g.Min, g.Max) }

// verdict returns whether a figure meets the goal, as text.
func (g Goal) verdict(got float64) string {
	met, bound := got <= g.Max, "most"
	if g.Min != 0 {
		met, bound = got >= g.Min, "least"
	}
	verdict := "not met"
	if met {
		verdict = "met"
	}
	limit := strconv.FormatFloat(g.limit(), 'f', -1, 64)
	name := "`" + g.Case + "`"
	if g.Engine != "" {
		name += " " + g.Engine
	}
	return fmt.Sprintf("goal %s %s at %s %s: %s (%s)", name, g.Field, bound, limit, verdict, Field{Value: got}.text())
}

// OnlyByName returns true if the case runs only when it is named, because it takes long.
func (s Suite) OnlyByName(name string) bool {
	return s.results != nil && slices.Contains(s.results.apart, name)
}

// Options configure a run of a suite.
type Options struct {
	// Short runs a smoke test: every step once, with meaningless figures.
	Short bool
	// Cases restricts the run to these. Empty means all cases of the suite.
	Cases []string
	// Progress gets a line of text, without newline, whenever a step begins. Never nil.
	Progress func(string)
	// LabName names the lab of the suites that need one. Each suite makes and removes its own.
	LabName string
	// Katran is the path of Katran's balancer object, which the data-plane suite measures in turns
	// with the mux. Empty means without Katran.
	Katran string
	// Program is the shunt program that suites start. Empty means this one.
	Program string
	// Rivals is the directory with the sources of other programs that the health suite also
	// measures.
	Rivals string
	// Soak is the duration of the health suite's case soak for each engine. 0 means half a minute.
	Soak time.Duration
	// Note gets a line of text that must be shown: a part that is left out, and why. If it is nil,
	// Progress gets it.
	Note func(string)
}

// progressf formats a line of progress.
func (o Options) progressf(format string, args ...any) { o.Progress(fmt.Sprintf(format, args...)) }

// notef formats a line that must be shown.
func (o Options) notef(format string, args ...any) {
	tell := o.Note
	if tell == nil {
		tell = o.Progress
	}
	tell(fmt.Sprintf(format, args...))
}

// wants reports whether the case was selected.
func (o Options) wants(name string) bool { return len(o.Cases) == 0 || slices.Contains(o.Cases, name) }

// wantsLong reports whether a case that takes long was selected by name.
func (o Options) wantsLong(name string) bool { return slices.Contains(o.Cases, name) }

// later lists the suites and cases of the bench contract that this version does not have yet.
var later = map[string][]string{
	"dataplane": {
		"quic-plain/1Mi", "quic-aes/1Mi",
	},
	"rings": nil,
}

// Suites returns all suites, in the order in which "all" runs them.
func Suites() []Suite {
	return []Suite{dataplaneSuite, liveSuite, ringsSuite, memorySuite, httpSuite, controlSuite, failoverSuite, nodesSuite, placeSuite, healthSuite, snatSuite, hostSuite, hostFlowsSuite, repairSuite, cheetahSuite}
}

// Find returns the named suite.
func Find(name string) (Suite, error) {
	var names []string
	for _, s := range Suites() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	if _, ok := later[name]; ok {
		return Suite{}, fmt.Errorf("suite: %s: not supported by this version", name)
	}
	return Suite{}, fmt.Errorf("suite: %q: must be one of %s, all", name, strings.Join(names, ", "))
}

// Check returns an error if the cases cannot be run.
func (s Suite) Check(cases []string) error {
	for _, c := range cases {
		switch {
		case slices.Contains(s.Cases, c):
		case slices.Contains(later[s.Name], c):
			return fmt.Errorf("case: %s: not supported by this version", c)
		default:
			return fmt.Errorf("case: %q: must be one of %s", c, strings.Join(s.Cases, ", "))
		}
	}
	return nil
}

// Run runs the measurement and calls emit with every finished row.
func (s Suite) Run(ctx context.Context, o Options, emit func(Row)) error {
	if err := s.Check(o.Cases); err != nil {
		return err
	}
	if err := s.run(ctx, o, emit); err != nil {
		return fmt.Errorf("suite %s: %w", s.Name, err)
	}
	return nil
}
