package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Page is docs/benchmarks.md: hand-written prose, and a generated section per suite between
// markers.
type Page struct {
	dir string // holds benchmarks.md and benchmarks/
}

// NewPage returns the page in a directory.
func NewPage(dir string) Page { return Page{dir} }

const (
	pageName = "benchmarks.md"
	plotDir  = "benchmarks"
	pageHead = "# Benchmarks\n\nEvery section is written by the command at its end; `make bench` runs them all.\n"
)

// Taken is the time, machine and version of a run.
type Taken struct {
	At      time.Time
	Machine Machine
	Version string
	// Stolen is the share of the CPU time that the hypervisor gave to others.
	Stolen float64
	// Cases are the selected cases. Empty means all cases of the suite.
	Cases []string
	// Load is the machine's load average before the run, from other work.
	Load float64
}

// command returns the command that produced the figures.
func (t Taken) command(suite string) string {
	if len(t.Cases) > 0 {
		suite += " --case " + strings.Join(t.Cases, ",")
	}
	return suite
}

// Write replaces the suite's section and its plot. A run of some cases replaces only their rows.
// The others stay, with the signature of their run.
func (p Page) Write(s Suite, rows []Row, taken Taken) error {
	if len(rows) == 0 {
		return fmt.Errorf("write section %s: no rows", s.Name)
	}
	if s.results != nil {
		return s.results.write(p.dir, s, rows, taken)
	}
	rows, drawn := s.timeline.split(rows)
	var signatures []string
	if len(taken.Cases) > 0 {
		var err error
		if rows, signatures, err = p.merge(s, rows, taken); err != nil {
			return err
		}
	}
	plots := filepath.Join(p.dir, plotDir)
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return fmt.Errorf("write plots: %w", err)
	}
	if err := writePlot(s, rows, filepath.Join(plots, s.Name+".png")); err != nil {
		return fmt.Errorf("write plot of %s: %w", s.Name, err)
	}
	if s.curve != nil {
		if err := s.curve.write(rows, s.Plotted, s.Unit, filepath.Join(plots, s.Name+curveSuffix)); err != nil {
			return fmt.Errorf("write curve of %s: %w", s.Name, err)
		}
	}
	if err := s.timeline.write(drawn, filepath.Join(plots, s.Name+timelineSuffix)); err != nil {
		return fmt.Errorf("write timeline of %s: %w", s.Name, err)
	}
	return writeSection(filepath.Join(p.dir, pageName), pageHead, s.Name, section(s, rows, taken, signatures))
}

// writeSection replaces the section of a suite on a page. A new page begins with head.
func writeSection(path, head, name, body string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = []byte(head), nil
	}
	if err != nil {
		return fmt.Errorf("read page: %w", err)
	}
	page, err := replaceSection(string(text), name, body)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// markers returns the markers that enclose the section of a suite.
func markers(name string) (begin, end string) {
	return "<!-- bench " + name + ": begin, generated -->", "<!-- bench " + name + ": end -->"
}

// replaceSection puts body between the suite's markers. A page without markers gets them at its
// end.
func replaceSection(page, name, body string) (string, error) {
	begin, end := markers(name)
	whole := begin + "\n" + body + end
	from, to := strings.Index(page, begin), strings.Index(page, end)
	switch {
	case from < 0 && to < 0:
		return strings.TrimRight(page, "\n") + "\n\n" + whole + "\n", nil
	case from < 0 || to < from:
		return "", fmt.Errorf("section %s: one of its two markers is missing or misplaced", name)
	}
	return page[:from] + whole + page[to+len(end):], nil
}

// section returns the generated text of a suite. earlier are the signatures of rows of earlier
// runs.
func section(s Suite, rows []Row, taken Taken, earlier []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n%s\n\n", s.Title, s.About)
	writeMarkdownTable(&b, rows)
	for _, line := range verdicts(s, rows) {
		fmt.Fprintf(&b, "\n- %s", line)
	}
	if len(s.Goals) > 0 {
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\n![%s](%s/%s.png)\n\n", s.Title, plotDir, s.Name)
	if s.curve != nil {
		fmt.Fprintf(&b, "![%s](%s/%s%s)\n\n", s.curve.title, plotDir, s.Name, curveSuffix)
	}
	if s.timeline != nil {
		fmt.Fprintf(&b, "![%s](%s/%s%s)\n\n", s.timeline.title, plotDir, s.Name, timelineSuffix)
	}
	for _, line := range earlier {
		b.WriteString(line + "\n\n")
	}
	b.WriteString(signature(taken.command(s.Name), taken))
	return b.String()
}

// signature returns the command, date and machine of figures.
func signature(command string, taken Taken) string {
	text := fmt.Sprintf("`shunt bench %s`, %s, %s; %s.", command, taken.At.UTC().Format(time.DateOnly), taken.Version, taken.Machine)
	if stolen := StolenText(taken.Stolen); stolen != "" {
		text += fmt.Sprintf(" Mind that %s.", stolen)
	}
	if other := LoadText(taken.Load); other != "" {
		text += fmt.Sprintf(" Mind that %s.", other)
	}
	return text + "\n"
}

// writeMarkdownTable writes rows with figures aligned right.
func writeMarkdownTable(b *strings.Builder, rows []Row) {
	names := columns(rows)
	fmt.Fprintf(b, "| case | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat("--:|", len(names)))
	for _, r := range rows {
		cells := r.cells(names)
		cells[0] = "`" + cells[0] + "`"
		fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
	}
}

// verdicts returns for every goal whether it was met.
func verdicts(s Suite, rows []Row) []string {
	var lines []string
	for _, g := range s.Goals {
		for _, r := range rows {
			if !g.concerns(r) {
				continue
			}
			lines = append(lines, g.verdict(r.Get(g.Field)))
		}
	}
	return lines
}
