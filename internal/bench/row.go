// Package bench measures Shunt: suites of cases whose figures other programs read (design section
// 6, bench contract).
package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// Row is the result of one case: one line of `-o json`.
type Row struct {
	Case   string
	Fields []Field
}

// Field is one figure of a row. The name contains the unit.
type Field struct {
	Name  string
	Value any // float64, int, uint64 or string
}

// Get returns the value of a field as a float64, or NaN.
func (r Row) Get(name string) float64 {
	for _, f := range r.Fields {
		if f.Name != name {
			continue
		}
		switch v := f.Value.(type) {
		case float64:
			return v
		case int:
			return float64(v)
		case uint64:
			return float64(v)
		}
	}
	return math.NaN()
}

// text returns the formatted value of a field, or "" if there is none.
func (r Row) text(name string) string {
	for _, f := range r.Fields {
		if f.Name == name {
			return f.text()
		}
	}
	return ""
}

// MarshalJSON writes an object whose fields keep their order, `case` first.
func (r Row) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range append([]Field{{"case", r.Case}}, r.Fields...) {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(f.Name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(f.Value)
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", f.Name, err)
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// text formats a field's value for tables.
func (f Field) text() string {
	if v, ok := f.Value.(float64); ok {
		switch {
		case math.Abs(v) >= 1000:
			return fmt.Sprintf("%.0f", v)
		case math.Abs(v) >= 100:
			return fmt.Sprintf("%.1f", v)
		}
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprint(f.Value)
}

// round rounds a figure to three decimals, because more would be noise.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// columns lists the field names of the rows in order of first appearance.
func columns(rows []Row) []string {
	var names []string
	seen := map[string]bool{}
	for _, r := range rows {
		for _, f := range r.Fields {
			if !seen[f.Name] {
				seen[f.Name] = true
				names = append(names, f.Name)
			}
		}
	}
	return names
}

// cells formats a row under the given columns.
func (r Row) cells(columns []string) []string {
	cells := []string{r.Case}
	for _, c := range columns {
		text := "–"
		for _, f := range r.Fields {
			if f.Name == c {
				text = f.text()
			}
		}
		cells = append(cells, text)
	}
	return cells
}

// WriteTable prints rows as a table.
func WriteTable(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	names := columns(rows)
	fmt.Fprintln(t, strings.ToUpper(strings.Join(append([]string{"case"}, names...), "\t")))
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r.cells(names), "\t"))
	}
	return t.Flush()
}
