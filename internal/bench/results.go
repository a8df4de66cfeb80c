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

// results is the page of a suite that is not published among the others: a section of the README of a directory of its own, with files of figures beside.
type results struct {
	// dir is below that of benchmarks.md.
	dir string
	// detail are cases whose rows are in files and plots, and in no table.
	detail []string
	// apart are cases that run only when they are named: each has a section of its own, which a run without it leaves alone.
	apart []string
	files func(rows []Row) []resultFile
}

// resultFile is a table as CSV and a plot of it, if there are any panels, under one name.
type resultFile struct {
	name, title string
	rows        []Row
	panels      []figure.Panel
}

// resultsName is the page of a directory of results.
const resultsName = "README.md"

// CheckWrite says why a run of these cases cannot be published, if it cannot: a page of the suite's own has the figures of one whole run.
func (s Suite) CheckWrite(cases []string) error {
	if s.results == nil || len(cases) == 0 || !slices.ContainsFunc(cases, func(c string) bool { return !s.OnlyByName(c) }) {
		return nil
	}
	return fmt.Errorf("--write: must not come with --case, but for %s: the page of %s has the figures of one run", strings.Join(s.results.apart, ", "), s.Name)
}

// write replaces the sections and files that there are rows for.
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

// without are the rows but for some.
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

// apartSection is the generated text of a case that has one of its own.
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

// section is the generated text of the suite.
func (r *results) section(s Suite, rows []Row, taken Taken) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n%s\n\n", s.Title, s.About)
	shown := without(rows, func(row Row) bool { return slices.Contains(r.detail, row.Case) })
	for _, c := range s.Cases { // cases have figures of their own
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

// plain are a row's cells under the given columns, with figures as programs read them; empty without one.
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
