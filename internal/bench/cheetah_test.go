package bench

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The lab has each server of the steps once, and pools follow the steps.
func TestScalingStory(t *testing.T) {
	for _, short := range []bool{false, true} {
		sizes := Options{Short: short}.cheetahSizes()
		s := &scaling{sizes: sizes, draining: make([]bool, sizes.servers)}
		seen := map[netip.Addr]bool{}
		for n := range sizes.servers + sizes.come {
			if host, vm := s.serverPlace(n); host < 1 || host > sizes.hosts || vm < 1 || vm > sizes.vms || seen[s.serverDIP(n)] {
				t.Errorf("short %v: server %d is VM %d of host %d", short, n, vm, host)
			}
			seen[s.serverDIP(n)] = true
		}
		going := map[int]bool{}
		for i := range sizes.leave {
			going[(3*i+1)%sizes.servers] = true
		}
		if len(going) != sizes.leave {
			t.Errorf("short %v: %d servers go, want %d", short, len(going), sizes.leave)
		}
		var marks []string
		for _, step := range s.steps() {
			marks = append(marks, step.mark)
		}
		want := map[bool]string{
			false: "25 26 27 28 28− 29 30 31 31+ key 30 29 28 27 26 26− 25 24 23 23+",
			true:  "5 6 6− 6+ key 5 4 4− 4+",
		}[short]
		if got := strings.Join(marks, " "); got != want {
			t.Errorf("short %v: the story is %s, want %s", short, got, want)
		}
		if first, last := vipPorts.first, int(vipPorts.first)+4*enginePorts-1; last > int(vipPorts.last) || first < 1024 || enginePorts < sizes.first+(sizes.come+sizes.leave+5)*sizes.more {
			t.Errorf("short %v: source ports end at %d, and there are %d for each engine", short, last, enginePorts)
		}
	}
}

func TestNetstat(t *testing.T) {
	const text = "TcpExt: SyncookiesSent PAWSEstab TSEcrRejected\nTcpExt: 1 22 333\nIpExt: InNoRoutes PAWSEstab\nIpExt: 4 5\n"
	for name, want := range map[string]uint64{"SyncookiesSent": 1, "PAWSEstab": 22, "TSEcrRejected": 333, "InNoRoutes": 4, "Nothing": 0} {
		if got, err := netstat(text, name); err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", name, got, err, want)
		}
	}
}

// The long silence runs only if it is named.
func TestSilencesWanted(t *testing.T) {
	for _, c := range []struct {
		cases []string
		want  string
	}{{nil, "idle-1 idle-70"}, {[]string{"scaling"}, ""}, {[]string{"idle-700"}, "idle-700"}} {
		var got []string
		for _, s := range silences {
			if (Options{Cases: c.cases}).wantsSilence(s.name, s.long) {
				got = append(got, s.name)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("of cases %v run %v, want %s", c.cases, got, c.want)
		}
	}
}

// A suite with a page of its own writes its section there, its figures next to it, and every row
// into one of the files.
func TestResultsPage(t *testing.T) {
	rows := []Row{
		{cheetahStep, []Field{{engineField, "shunt"}, {"number", 0}, {"mark", "24"}, {brokenField, 0}, {brokenPercent, 0.0}}},
		{cheetahStep, []Field{{engineField, "shunt"}, {"number", 1}, {"mark", "25"}, {brokenField, 0}, {brokenPercent, 0.0}}},
		{"scaling", []Field{{engineField, "shunt"}, {brokenField, 0}, {brokenPercent, 0.0}, {"connections", 10}}},
		{"idle-1", []Field{{engineField, "shunt"}, {"idle_s", 1.0}, {"late", 0}, {pushDelayField, 0.25}}},
	}
	dir := t.TempDir()
	page := filepath.Join(dir, "results", "cheetah", "README.md")
	if err := os.MkdirAll(filepath.Dir(page), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(page, []byte("# By hand\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	taken := Taken{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Version: "v1", Machine: Machine{CPU: "some CPU", CPUs: 2}}
	for range 2 {
		if err := NewPage(dir).Write(cheetahSuite, rows, taken); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# By hand\n", "| `scaling` | shunt | 0 | 0.00 | 10 |", "| `idle-1` | shunt | 1.00 | 0 | 0.25 |", "goal `scaling` shunt broken at most 0: met (0.00)",
		"(lab-broken.png)", "(lab-idle.png)", "`shunt bench cheetah`, 2026-01-02, v1; 2 CPUs (some CPU)",
	} {
		if strings.Count(string(text), want) != 1 {
			t.Errorf("the page has %q not once:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "| `step`") {
		t.Error("the page has rows of steps")
	}
	for file, want := range map[string]string{
		"lab-broken.csv": "case,engine,number,mark,broken,broken_pct\nstep,shunt,0,24,0,0\nstep,shunt,1,25,0,0\n",
		"lab-idle.csv":   "case,engine,idle_s,late,worst_s\nidle-1,shunt,1,0,0.25\n",
	} {
		got, err := os.ReadFile(filepath.Join(filepath.Dir(page), file))
		if err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %q", file, got, err, want)
		}
	}
	long := []Row{{"idle-700", []Field{{engineField, "shunt"}, {"idle_s", 700.0}, {"late", 0}, {pushDelayField, 0.5}}}}
	for range 2 {
		if err := NewPage(dir).Write(cheetahSuite, long, taken); err != nil {
			t.Fatal(err)
		}
	}
	after, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(after), string(text)) {
		t.Errorf("a case with a section of its own changed more than that:\n%s", after)
	}
	for _, want := range []string{"| `idle-700` | shunt | 700.0 | 0 | 0.50 |", "goal `idle-700` shunt late at most 0: met (0.00)", "`shunt bench cheetah --case idle-700`, 2026-01-02, v1"} {
		if strings.Count(string(after[len(text):]), want) != 1 {
			t.Errorf("its section has %q not once:\n%s", want, after[len(text):])
		}
	}
	if got, err := os.ReadFile(filepath.Join(filepath.Dir(page), "lab-idle-700.csv")); err != nil || string(got) != "case,engine,idle_s,late,worst_s\nidle-700,shunt,700,0,0.5\n" {
		t.Errorf("lab-idle-700.csv is %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, pageName)); err == nil {
		t.Error("it wrote into the page of the others, too")
	}
}
