package bench

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A suite's section of the published page is read as it was written: rows, their fields and their
// texts.
func TestParseSectionOfThePage(t *testing.T) {
	text, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, s := range Suites() {
		begin, _ := markers(s.Name)
		if !strings.Contains(string(text), begin) {
			continue
		}
		rows, signatures := parseSection(string(text), s.Name)
		var b strings.Builder
		writeMarkdownTable(&b, rows)
		if len(rows) == 0 || len(signatures) == 0 || !strings.Contains(string(text), b.String()) {
			t.Errorf("suite %s: %d signatures, and the page has no table\n%s", s.Name, len(signatures), b.String())
		}
		read++
	}
	if read < 10 {
		t.Errorf("the page has %d suites", read)
	}
}

// A run of one case replaces only its row. The others keep their signature. A complete run replaces
// everything.
func TestPageKeepsOtherCases(t *testing.T) {
	dir := t.TempDir()
	s, err := Find("control")
	if err != nil {
		t.Fatal(err)
	}
	page := NewPage(dir)
	taken := Taken{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Version: "v1", Machine: Machine{CPU: "some CPU", CPUs: 2, Memory: "8 GiB", Kernel: "6.1", Go: "go1"}}
	write := func(taken Taken, rows ...Row) string {
		t.Helper()
		if err := page.Write(s, rows, taken); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, pageName))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	write(taken, Row{"apply", []Field{{"p50_ms", 12.0}, {"p99_ms", 30.0}}}, Row{"apply-new-vip", []Field{{"p50_ms", 400.0}, {"p99_ms", 410.0}}})
	some := taken
	some.Version, some.Cases, some.Load = "v2", []string{"apply-new-vip"}, 7.25
	for range 2 { // a second run of the same case leaves no signature of the first
		text := write(some, Row{"apply-new-vip", []Field{{"p50_ms", 500.0}}})
		rows, signatures := parseSection(text, s.Name)
		want := []Row{{"apply", []Field{{"p50_ms", 12.0}, {"p99_ms", 30.0}}}, {"apply-new-vip", []Field{{"p50_ms", 500.0}}}}
		if !reflect.DeepEqual(rows, want) {
			t.Errorf("rows are %v, want %v", rows, want)
		}
		if len(signatures) != 2 || !strings.HasPrefix(signatures[0], "`shunt bench control`, 2026-01-02, v1;") ||
			!strings.HasPrefix(signatures[1], "`shunt bench control --case apply-new-vip`, 2026-01-02, v2;") || !strings.HasSuffix(signatures[1], "Mind that other work had put a load of 7.2 on the machine when the run began.") {
			t.Errorf("signatures are %q", signatures)
		}
		if !strings.Contains(text, "goal `apply` p50_ms at most 50: met (12.00)") || !strings.Contains(text, "goal `apply-new-vip` p50_ms at most 300: not met (500.0)") {
			t.Errorf("goals are those of\n%s", text)
		}
	}
	text := write(taken, Row{"apply", []Field{{"p50_ms", 13.0}}})
	if rows, signatures := parseSection(text, s.Name); len(rows) != 1 || len(signatures) != 1 {
		t.Errorf("after a whole run: %v, %q", rows, signatures)
	}
}

// The load average is the first figure. Below one it does not matter.
func TestLoad(t *testing.T) {
	for text, want := range map[string]float64{"0.35 0.40 0.50 1/200 4711\n": 0.35, "18.59 14.35 8.21 3/900 1": 18.59, "": 0, "many 1 1": 0} {
		if got := parseLoad(text); got != want {
			t.Errorf("load of %q is %v, want %v", text, got, want)
		}
	}
	if text := LoadText(0.9); text != "" {
		t.Errorf("a load of 0.9 is worth %q", text)
	}
}
