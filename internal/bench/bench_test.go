package bench

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRowKeepsOrder(t *testing.T) {
	row := Row{Case: "hash/1", Fields: []Field{{"over_floor_ns", 24.5}, {"floor_ns", 11.0}, {"runs", 11}, {"a", "b"}}}
	got, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"case":"hash/1","over_floor_ns":24.5,"floor_ns":11,"runs":11,"a":"b"}`; string(got) != want {
		t.Errorf("row is %s, want %s", got, want)
	}
	if _, err := json.Marshal(Row{Fields: []Field{{"x", math.NaN()}}}); err == nil {
		t.Error("a figure that is no number was written")
	}
}

func TestWriteTable(t *testing.T) {
	var b strings.Builder
	rows := []Row{{"a", []Field{{"ms", 1.234}, {"runs", 3}}}, {"bb", []Field{{"rps", 12345.6}}}}
	if err := WriteTable(&b, rows); err != nil {
		t.Fatal(err)
	}
	want := "CASE  MS    RUNS  RPS\na     1.23  3     –\nbb    –     –     12346\n"
	if b.String() != want {
		t.Errorf("table is\n%swant\n%s", b.String(), want)
	}
}

// Oracle: the value below which the share p of the values lies, found by counting.
func TestPercentileByCounting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 50).Draw(t, "values")
		p := rapid.Float64Range(0.001, 1).Draw(t, "p")
		got := Percentile(values, p)
		below, upTo := 0, 0
		for _, v := range values {
			if v < got {
				below++
			}
			if v <= got {
				upTo++
			}
		}
		need := p * float64(len(values))
		if !slices.Contains(values, got) || float64(upTo) < need || float64(below) >= need {
			t.Fatalf("percentile %v of %v is %v", p, values, got)
		}
	})
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{[]float64{1}, 1}, {[]float64{3, 1}, 2}, {[]float64{5, 1, 3}, 3}} {
		if got := Median(c.in); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.in, got, c.want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("the median of nothing has a value")
		}
	}()
	Median(nil)
}

func TestUnsupportedIsRefused(t *testing.T) {
	for _, c := range []struct{ suite, name, want string }{
		{"dataplane", "nonsense", `"nonsense": must be one of hash/1`},
	} {
		s, err := Find(c.suite)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check([]string{c.name}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: error is %v, want %q", c.suite, c.name, err, c.want)
		}
	}
	for name, want := range map[string]string{
		"x": `"x": must be one of dataplane, live, rings, memory, http, control, failover, nodes, place, health, snat, host, hostflows, repair, cheetah, all`,
	} {
		if _, err := Find(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("suite %s: error is %v, want %q", name, err, want)
		}
	}
}

// Every goal of a suite names one of its cases.
func TestSuitesAreConsistent(t *testing.T) {
	for _, s := range Suites() {
		if len(s.Cases) == 0 || len(s.Plotted) == 0 || s.Unit == "" || s.Takes == 0 || s.TakesShort == 0 || s.TakesShort > time.Minute {
			t.Errorf("suite %s is not described fully", s.Name)
		}
		for _, g := range s.Goals {
			if !slices.Contains(s.Cases, g.Case) || g.Field == "" || (g.Min != 0) == (g.Max != 0 || g.None) {
				t.Errorf("suite %s: goal %+v: needs a case, a field and one limit", s.Name, g)
			}
		}
	}
}

func TestReplaceSection(t *testing.T) {
	page, err := replaceSection("# Title\n\nProse.\n", "a", "one\n")
	if err != nil {
		t.Fatal(err)
	}
	if page, err = replaceSection(page, "b", "two\n"); err != nil {
		t.Fatal(err)
	}
	if page, err = replaceSection(page, "a", "three\n"); err != nil {
		t.Fatal(err)
	}
	want := "# Title\n\nProse.\n\n<!-- bench a: begin, generated -->\nthree\n<!-- bench a: end -->\n\n" +
		"<!-- bench b: begin, generated -->\ntwo\n<!-- bench b: end -->\n"
	if page != want {
		t.Errorf("page is\n%s\nwant\n%s", page, want)
	}
	begin, _ := markers("a")
	if _, err := replaceSection(begin, "a", ""); err == nil {
		t.Error("a page with half a section was changed")
	}
}

func TestPageWithPlot(t *testing.T) {
	dir := t.TempDir()
	s, err := Find("control")
	if err != nil {
		t.Fatal(err)
	}
	rows := []Row{
		{"apply", []Field{{"p50_ms", 12.0}, {"p99_ms", 30.0}}},
		{"apply-new-vip", []Field{{"p50_ms", 400.0}, {"p99_ms", 410.0}}},
	}
	taken := Taken{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Version: "v1", Machine: Machine{CPU: "some CPU", CPUs: 2, Memory: "8 GiB", Kernel: "6.1", Go: "go1"}}
	if err := NewPage(dir).Write(s, rows, taken); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| `apply` | 12.00 | 30.00 |", "goal `apply` p50_ms at most 50: met (12.00)",
		"goal `apply-new-vip` p50_ms at most 300: not met (400.0)", "`shunt bench control`, 2026-01-02, v1; 2 CPUs (some CPU)",
		"](benchmarks/control.png)",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("page lacks %q:\n%s", want, text)
		}
	}
	plot, err := os.ReadFile(filepath.Join(dir, "benchmarks", "control.png"))
	if err != nil || !bytes.HasPrefix(plot, []byte("\x89PNG\r\n")) {
		t.Errorf("plot: %v, %d bytes", err, len(plot))
	}
}
