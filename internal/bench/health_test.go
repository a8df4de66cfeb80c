package bench

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/bench/checker"
)

func TestHealthRows(t *testing.T) {
	burst := []burstFigure{{wall: 0.3, cpu: 0.08, own: 0.07, late: 1}, {wall: 0.1, cpu: 0.05, own: 0.04, wrong: 2}, {wall: 0.2, cpu: 0.07, own: 0.06}}
	steady := []steadyFigure{
		{perProbe: 3e-6, own: 2e-6, done: 100, jitter: 3, rules: 140_000},
		{perProbe: 2e-6, own: 1e-6, done: 98, jitter: 9, late: 5, rules: 140_000},
		{perProbe: 9e-6, own: 8e-6, done: 99, jitter: 4, wrong: 7, rules: 140_000},
	}
	few := []steadyFigure{{perProbe: 30e-6, own: 20e-6, done: 100, rules: 10_000}}
	for _, c := range []struct {
		of   healthCase
		f    healthFigures
		want string
	}{
		{healthCases[0], healthFigures{rules: 28_000, bursts: burst}, `{"case":"tcp-28000","engine":"x","wall_s":0.2,"cpu_s":0.07,"late":1,` +
			`"us_per_probe":2.5,"own_us":2.143,"wrong":2,"rules":28000,"runs":3}`},
		{healthCases[3], healthFigures{rules: 140_000, bursts: burst[:1], steadies: steady}, `{"case":"http-140000","engine":"x","wall_s":0.3,` +
			`"cpu_s":0.42,"late":5,"us_per_probe":3,"own_us":2,"wrong":7,"rules":140000,"runs":3,"cores":0.084,"jitter_p99_ms":4,"done":99,"burst_cpu_s":0.08}`},
		{healthCases[2], healthFigures{rules: 140_000, steadies: few}, `{"case":"tcp-140000","engine":"x",` +
			`"cpu_s":4.2,"late":0,"us_per_probe":30,"own_us":20,"wrong":0,"rules":10000,"runs":1,"cores":0.84,"jitter_p99_ms":0,"done":100}`},
		{healthCases[0], healthFigures{rules: 28_000, steadies: few}, ""},
	} {
		row, ok := c.f.row(c.of, "x")
		if !ok {
			if c.want != "" {
				t.Errorf("%s: no row", c.of.name)
			}
			continue
		}
		if got, err := json.Marshal(row); err != nil || string(got) != c.want {
			t.Errorf("row is %s, %v, want %s", got, err, c.want)
		}
	}
}

func TestGoalsOfEngines(t *testing.T) {
	s := Suite{Goals: []Goal{atMost("a", "us", 2).of("fast"), none("a", "late").of("fast"), atMost("b", "us", 2)}}
	rows := []Row{
		{"a", []Field{{engineField, "slow"}, {"us", 9.0}, {"late", uint64(3)}}}, {"a", []Field{{engineField, "fast"}, {"us", 1.0}, {"late", uint64(3)}}},
		{"b", []Field{{"us", 3.0}}},
	}
	want := []string{"goal `a` fast us at most 2: met (1.00)", "goal `a` fast late at most 0: not met (3.00)", "goal `b` us at most 2: not met (3.00)"}
	if got := verdicts(s, rows); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPlotSeriesOfEngines(t *testing.T) {
	rows := []Row{
		{"a", []Field{{engineField, "x"}, {"us", 1.0}}}, {"a", []Field{{engineField, "y"}, {"us", 2.0}}}, {"a", []Field{{engineField, "z"}, {"s", 2.0}}},
		{"b", []Field{{engineField, "y"}, {"us", 3.0}}},
	}
	out, names := spread(rows, engineField, "us")
	if !slices.Equal(names, []string{"x", "y"}) || len(out) != 2 {
		t.Fatalf("series %v of %v", names, out)
	}
	if out[0].Case != "a" || out[0].Get("x") != 1 || out[0].Get("y") != 2 || out[1].Case != "b" || out[1].Get("y") != 3 {
		t.Errorf("%v", out)
	}
	path := filepath.Join(t.TempDir(), "plot.png")
	if err := writePlot(Suite{Title: "t", Unit: "µs", Series: engineField, Plotted: []string{"us"}}, rows, path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		t.Errorf("plot: %v", err)
	}
}

func TestHAProxyStatistics(t *testing.T) {
	const text = "# pxname,svname,status,weight,chkfail\ntargets,s0,UP,1,0\ntargets,s1,DOWN,1,4\ntargets,s2,UP 1/2,1,1\n\n"
	got, err := parseHAProxy(strings.NewReader(text))
	if err != nil || got.Good != 2 || got.Bad != 5 {
		t.Errorf("%+v, %v: want 2 servers that are up, 5 failures", got, err)
	}
	for _, wrong := range []string{"", "# pxname,svname,status\n", "Unknown command\n"} {
		if _, err := parseHAProxy(strings.NewReader(wrong)); err == nil {
			t.Errorf("%q: was read", wrong)
		}
	}
}

func TestHAProxyConfig(t *testing.T) {
	job := checker.Job{Kind: checker.HTTP, First: netip.MustParseAddr("10.0.0.255"), Port: 80, Targets: 2, Interval: 5 * time.Second, Timeout: 2 * time.Second}
	for kind, want := range map[string]string{checker.HTTP: "option httpchk GET /\n", checker.TCP: "option tcp-check\n"} {
		job.Kind = kind
		text := string(haproxyConfig(job, "/x/socket"))
		for _, want := range []string{
			want, "stats socket /x/socket ", "timeout check 2000ms\n", "default-server check inter 5000ms\n", "server s0 10.0.0.255:80\n", "server s1 10.0.1.0:80\n",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: lacks %q:\n%s", kind, want, text)
			}
		}
	}
}

// TestHealthRuns runs every case with a hundredth of the rules. Rivals that are not installed are
// noted and left out.
func TestHealthRuns(t *testing.T) {
	program := filepath.Join(t.TempDir(), "shunt")
	build := exec.Command("go", "build", "-o", program, "../../cmd/shunt")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build shunt: %v\n%s", err, out)
	}
	var notes []string
	o := Options{
		Short: true, Program: program, LabName: "bench-test", Rivals: t.TempDir(),
		Progress: func(line string) { t.Log(line) }, Note: func(line string) { notes = append(notes, line) },
	}
	got := map[string][]string{}
	if err := healthSuite.Run(t.Context(), o, func(r Row) {
		t.Log(r)
		got[r.Case] = append(got[r.Case], r.text(engineField))
		if strings.HasPrefix(r.Case, "lost-") {
			if r.Get("p50_ms") <= 0 || r.Get("max_ms") < r.Get("p50_ms") || r.Get("member_max_ms") <= 0 || r.Get("wall_s") <= 0 || r.Get("lost") != 200 {
				t.Errorf("row without figures: %v", r)
			}
			return
		}
		if r.Get("us_per_probe") < r.Get("own_us") || r.Get("own_us") <= 0 || r.Get("rules") <= 0 || r.Get("late") < 0 {
			t.Errorf("row without figures: %v", r)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(notes, func(line string) bool { return strings.HasPrefix(line, "tokio: left out: its source is not at ") }) {
		t.Errorf("nobody was told of the rival that is not there: %q", notes)
	}
	for _, c := range lossCases {
		if !slices.Equal(got[c.name], []string{"packet"}) {
			t.Errorf("case %s: engines %v", c.name, got[c.name])
		}
	}
	engines := append(slices.DeleteFunc(slices.Clone(shuntEngines), func(e string) bool { return !checker.Has(e) }), "go")
	for _, c := range healthCases {
		if here := slices.DeleteFunc(got[c.name], func(e string) bool { return e == "haproxy" }); !slices.Equal(here, engines) {
			t.Errorf("case %s: engines %v, want %v", c.name, here, engines)
		}
	}
}
