package bench

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shuntlb/shunt/internal/figure"
)

// results is the separate page of a suite: a section of the README of its own directory, with files
// of figures next to it.
type results struct {
	// dir is below the directory of benchmarks.md.
	dir string
	// detail lists cases whose rows are in files and plots, but in no table.
	detail []string
	// apart lists cases that run only when they are named. Each has its own section, which a run
	// without the case leaves unchanged.
	apart []string
	files func(rows []Row) []resultFile
}

// resultFile is a table as CSV and, if there are panels, a plot of it under the same name.
type resultFile struct {
	name, title string
	rows        []Row
	panels      []figure.Panel
}

// resultsName is the page in a directory of results.
const resultsName = "README.md"

// CheckWrite returns an error if a run of these cases cannot be published, because a separate page
// has the figures of one complete run.
func (s Suite) CheckWrite(cases []string) error {
	if s.results == nil || len(cases) == 0 || !slices.ContainsFunc(cases, func(c string) bool { return !s.OnlyByName(c) }) {
		return nil
	}
	return fmt.Errorf("--write: must not come with --case, but for %s: the page of %s has the figures of one run", strings.Join(s.results.apart, ", "), s.Name)
}

// write replaces the sections and files for which there are rows.
func (r *results) write(dir string, s Suite, rows []Row, taken Taken) error {
	dir = filepath.Join(dir, r.dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := r.writeFiles(dir, rows); err != nil {
		return err
	}
	page, head := filepath.Join(dir, resultsName), "# "+s.Title+"\n"
	together := without(rows, func(row Row) bool { return slices.Contains(r.apart, row.Case) })
	if len(together) > 0 {
		if err := writeSection(page, head, s.Name, r.section(s, together, taken)); err != nil {
			return err
		}
	}
	for _, c := range r.apart {
		if of := without(rows, func(row Row) bool { return row.Case != c }); len(of) > 0 {
			if err := writeSection(page, head, s.Name+" "+c, apartSection(s, c, of, taken)); err != nil {
				return err
			}
		}
	}
	return nil
}

// without returns the rows except those that match.
func without(rows []Row, which func(Row) bool) []Row {
	return slices.DeleteFunc(slices.Clone(rows), which)
}

// writeFiles writes the tables and plots of rows.
func (r *results) writeFiles(dir string, rows []Row) error {
	for _, f := range r.files(rows) {
		names := columns(f.rows)
		var cells [][]string
		for _, row := range f.rows {
			cells = append(cells, row.plain(names))
		}
		if err := figure.WriteCSV(filepath.Join(dir, f.name+".csv"), append([]string{"case"}, names...), cells); err != nil {
			return err
		}
		if len(f.panels) == 0 {
			continue
		}
		if err := figure.WritePNG(filepath.Join(dir, f.name+".png"), f.panels...); err != nil {
			return err
		}
	}
	return nil
}

// apartSection returns the generated text of a case with its own section.
func apartSection(s Suite, name string, rows []Row, taken Taken) string {
	var b strings.Builder
	writeMarkdownTable(&b, rows)
	b.WriteString("\n")
	for _, line := range verdicts(s, rows) {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	b.WriteString("\n" + signature(s.Name+" --case "+name, taken))
	return b.String()
}

// section returns the generated text of the suite.
func (r *results) section(s Suite, rows []Row, taken Taken) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n%s\n\n", s.Title, s.About)
	shown := without(rows, func(row Row) bool { return slices.Contains(r.detail, row.Case) })
	for _, c := range s.Cases { // the fields differ from case to case
		of := without(shown, func(row Row) bool { return row.Case != c })
		if len(of) > 0 {
			writeMarkdownTable(&b, of)
			b.WriteString("\n")
		}
	}
	for _, line := range verdicts(s, shown) {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	if len(s.Goals) > 0 {
		b.WriteString("\n")
	}
	for _, f := range r.files(rows) {
		if len(f.panels) > 0 {
			fmt.Fprintf(&b, "![%s](%s.png)\n\n", f.title, f.name)
		}
	}
	b.WriteString(signature(s.Name, taken))
	return b.String()
}

// plain returns a row's cells under the given columns, with figures in machine-readable form. A
// cell without a figure is empty.
func (r Row) plain(columns []string) []string {
	cells := []string{r.Case}
	for _, c := range columns {
		text := ""
		if v := r.Get(c); !math.IsNaN(v) {
			text = fmt.Sprint(v)
		} else {
			text = r.text(c)
		}
		cells = append(cells, text)
	}
	return cells
}
