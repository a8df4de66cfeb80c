package compare

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/bench"
)

func suite(t *testing.T, name string) bench.Suite {
	t.Helper()
	s, err := bench.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// script returns the next figure of a build at each call, and records the order of the builds.
type script struct {
	values [2][]float64
	field  string
	order  []Build
}

func (s *script) measure(_ context.Context, b Build, of bench.Suite, name string) (map[Figure]float64, error) {
	s.order = append(s.order, b)
	v := s.values[b][0]
	if len(s.values[b]) > 1 {
		s.values[b] = s.values[b][1:]
	}
	return map[Figure]float64{{Suite: of.Name, Case: name, Field: s.field}: v}, nil
}

func (s *script) run(t *testing.T, o Options, suiteName, name string) Result {
	t.Helper()
	o.Suites, o.Cases, o.Progress = []bench.Suite{suite(t, suiteName)}, []string{name}, func(string) {}
	results, missing, err := Run(context.Background(), o, s.measure)
	if err != nil || len(missing) != 0 || len(results) != 1 {
		t.Fatalf("results %v, missing %v, error %v; want one result", results, missing, err)
	}
	return results[0]
}

// TestRunJudges checks that a slower build fails with a ratio above the limit, whichever direction
// of the figure is better, and that a documented reason passes up to its ratio.
func TestRunJudges(t *testing.T) {
	reason := Reason{Suite: "control", Case: "apply", Field: "p50_ms", Ratio: 1.5, Since: "abc", Reason: "hosts hear of it first"}
	for _, c := range []struct {
		name                         string
		suite, of, field             string
		base, present                float64
		reasons                      []Reason
		ratio                        float64
		worse, failed, measuredTwice bool
	}{
		{"equal", "control", "apply", "p50_ms", 10, 10, nil, 1, false, false, false},
		{"faster", "control", "apply", "p50_ms", 10, 5, nil, 0.5, false, false, false},
		{"at the limit", "control", "apply", "p50_ms", 10, 11, nil, 1.1, false, false, false},
		{"slower", "control", "apply", "p50_ms", 10, 14, nil, 1.4, true, true, true},
		{"slower, explained", "control", "apply", "p50_ms", 10, 14, []Reason{reason}, 1.4, true, false, false},
		{"slower than explained", "control", "apply", "p50_ms", 10, 16, []Reason{reason}, 1.6, true, true, true},
		{"another figure is explained", "control", "apply", "p99_ms", 10, 14, []Reason{reason}, 1.4, true, true, true},
		{"fewer packets", "live", "flow/1", "pps", 4e6, 2e6, nil, 2, true, true, true},
		{"more packets", "live", "flow/1", "pps", 2e6, 4e6, nil, 0.5, false, false, false},
		{"the first of its kind", "health", "soak", "late", 0, 3, nil, math.Inf(1), true, true, true},
		{"none in both", "health", "soak", "late", 0, 0, nil, 1, false, false, false},
	} {
		s := &script{field: c.field, values: [2][]float64{{c.base}, {c.present}}}
		r := s.run(t, Options{Rounds: 3, Limit: 1.10, Reasons: c.reasons}, c.suite, c.of)
		if math.Abs(r.Ratio-c.ratio) > 1e-9 || r.Worse != c.worse || r.Failed() != c.failed {
			t.Errorf("%s: ratio %v, worse %v, failed %v; want %v, %v, %v", c.name, r.Ratio, r.Worse, r.Failed(), c.ratio, c.worse, c.failed)
		}
		want := []Build{Base, Present, Base, Present, Base, Present}
		if c.measuredTwice {
			want = append(want, want...)
		}
		if !slices.Equal(s.order, want) {
			t.Errorf("%s: builds ran as %v, want in turns: %v", c.name, s.order, want)
		}
	}
}

// TestRunMeasuresAgain checks that an outlier of the first rounds does not fail a figure that the
// second rounds clear.
func TestRunMeasuresAgain(t *testing.T) {
	s := &script{field: "p50_ms", values: [2][]float64{{10}, {20, 20, 10, 10, 10, 10}}}
	r := s.run(t, Options{Rounds: 3, Limit: 1.10}, "control", "apply")
	if r.Failed() || r.Ratio != 1 || r.Rounds != 6 {
		t.Errorf("ratio %v after %d rounds, failed %v; want 1 after 6, passed", r.Ratio, r.Rounds, r.Failed())
	}
}

// TestRatioIsPairwise checks that ratios do not change if both builds slow down together, as on a
// busy machine.
func TestRatioIsPairwise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slow := rapid.Float64Range(0.5, 2).Draw(t, "slower by")
		var base, present []float64
		for range 3 {
			noise := rapid.Float64Range(1, 50).Draw(t, "noise")
			base, present = append(base, noise), append(present, noise*slow)
		}
		var rounds [][2]map[Figure]float64
		f := Figure{Suite: "control", Case: "apply", Field: "p50_ms"}
		for i := range base {
			rounds = append(rounds, [2]map[Figure]float64{{f: base[i]}, {f: present[i]}})
		}
		got := judge(Options{Limit: 1.10}, map[string]bool{"p50_ms": false}, rounds)
		if len(got) != 1 || math.Abs(got[0].Ratio-slow) > 1e-9 {
			t.Fatalf("%v, want the ratio %v", got, slow)
		}
	})
}

// TestRunMissing checks that a case that the base does not have is listed. A case that fails is
// listed too and makes the run fail, and the others continue.
func TestRunMissing(t *testing.T) {
	o := Options{Suites: []bench.Suite{suite(t, "rings")}, Rounds: 1, Limit: 1.1, Progress: func(string) {}}
	measure := func(_ context.Context, b Build, s bench.Suite, name string) (map[Figure]float64, error) {
		if name == "dead" && b == Base {
			return nil, fmt.Errorf("%w: case: unknown", ErrNoCase)
		}
		return map[Figure]float64{{Suite: s.Name, Case: name, Field: "ms"}: 1}, nil
	}
	results, missing, err := Run(context.Background(), o, measure)
	if err != nil || len(missing) != 1 || missing[0].Case != "dead" || len(results) != len(o.Suites[0].Cases)-1 {
		t.Errorf("results %v, missing %v, error %v", results, missing, err)
	}
	broken := errors.New("no room")
	results, missing, err = Run(context.Background(), o, func(ctx context.Context, b Build, s bench.Suite, name string) (map[Figure]float64, error) {
		if name == "down" && b == Present {
			return nil, broken
		}
		return measure(ctx, b, s, name)
	})
	if !errors.Is(err, broken) || len(missing) != 2 || missing[1].Case != "down" || len(results) != len(o.Suites[0].Cases)-2 {
		t.Errorf("results %v, missing %v, error %v; want all others and %v", results, missing, err, broken)
	}
	ended, end := context.WithCancel(context.Background())
	end()
	if results, _, err := Run(ended, o, func(context.Context, Build, bench.Suite, string) (map[Figure]float64, error) { return nil, ended.Err() }); !errors.Is(err, context.Canceled) || len(results) > 0 {
		t.Errorf("after the end: results %v, error %v", results, err)
	}
}

// TestReadFigures checks that rows of several engines are separate figures, and that the floor,
// text and repeated rows are none.
func TestReadFigures(t *testing.T) {
	in := `{"case":"tcp-28000","engine":"packet","us_per_probe":1.5,"wall_s":0.1,"floor_us":1}
{"case":"tcp-28000","engine":"socket","us_per_probe":15}
{"case":"soak","late":0}
`
	got, err := readFigures(suite(t, "health"), "tcp-28000", strings.NewReader(in))
	want := map[Figure]float64{
		{"health", "tcp-28000", "engine=packet", "us_per_probe"}: 1.5,
		{"health", "tcp-28000", "engine=packet", "wall_s"}:       0.1,
		{"health", "tcp-28000", "engine=socket", "us_per_probe"}: 15,
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	got, err = readFigures(suite(t, "snat"), "isolation", strings.NewReader(`{"case":"isolation","p50_ms":1}`+"\n"+`{"case":"isolation","p50_ms":2}`))
	if err != nil || len(got) != 0 {
		t.Errorf("a timeline: %v, %v; want none", got, err)
	}
	if _, err := readFigures(suite(t, "rings"), "dead", strings.NewReader("{")); err == nil {
		t.Error("half a row: no error")
	}
}

// TestReadReasons checks that entries are validated, and that errors name the entry and the field.
func TestReadReasons(t *testing.T) {
	entry := func(change string) string {
		fields := map[string]string{"suite": "rings", "case": "dead", "field": "ms", "ratio": "1.2", "since": "abc", "reason": "rings are checked twice"}
		k, v, _ := strings.Cut(change, "=")
		if k != "" {
			fields[k] = v
		}
		var b strings.Builder
		b.WriteString("- ")
		for i, k := range slices.Sorted(func(yield func(string) bool) {
			for k := range fields {
				if !yield(k) {
					return
				}
			}
		}) {
			if i > 0 {
				b.WriteString("  ")
			}
			fmt.Fprintf(&b, "%s: %s\n", k, fields[k])
		}
		return b.String()
	}
	for _, c := range []struct{ change, want string }{
		{"", ""},
		{"suite=nonsense", `reasons[0].suite: "nonsense": must be one of`},
		{"case=nonsense", `reasons[0].case: "nonsense": must be one of`},
		{"field=floor_ms", `reasons[0].field: "floor_ms": is not compared`},
		{"ratio=1", "reasons[0].ratio: 1: must be more than 1"},
		{"since=''", "reasons[0].since: is missing"},
		{"reason=slow", `reasons[0].reason: "slow": must say why`},
		{"colour=red", "colour"},
	} {
		got, err := ReadReasons([]byte(entry(c.change)))
		switch {
		case c.want == "" && (err != nil || len(got) != 1):
			t.Errorf("%v %v, want one reason", got, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want %q", c.change, err, c.want)
		}
	}
	if got, err := ReadReasons(nil); err != nil || got != nil {
		t.Errorf("an empty file: %v %v", got, err)
	}
}
