package compare

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/shuntlb/shunt/internal/bench"
)

// Figure names one measured value of a suite.
type Figure struct {
	Suite, Case string
	// Of identifies a row by its text fields ("engine=packet"). It is empty if a case has one row.
	Of    string
	Field string
}

// String returns the figure for output: suite, case, field, and the row if the case has several.
func (f Figure) String() string {
	name := f.Suite + " " + f.Case + " " + f.Field
	if f.Of != "" {
		name += " (" + f.Of + ")"
	}
	return name
}

// compareFigures orders figures by suite, case, row and field.
func compareFigures(a, b Figure) int {
	return cmp.Or(strings.Compare(a.Suite, b.Suite), strings.Compare(a.Case, b.Case), strings.Compare(a.Of, b.Of), strings.Compare(a.Field, b.Field))
}

// unrelated lists prefixes of fields that measure the machine or another program, not Shunt.
var unrelated = []string{"floor", "direct", "katran"}

// higher lists fields for which more is better, of suites that set no goal for them.
var higher = []string{"pps", "rps", "per_s", "share", "scaling", "gbit_ps", "cps"}

// compared returns the fields of a suite that are compared: those that it plots and those with
// goals. The value is true if more is better.
func compared(s bench.Suite) map[string]bool {
	out := map[string]bool{}
	for _, field := range s.Plotted {
		out[field] = slices.Contains(higher, field)
	}
	for _, g := range s.Goals {
		out[g.Field] = g.Min != 0 || slices.Contains(higher, g.Field)
	}
	for field := range out {
		if slices.ContainsFunc(unrelated, func(prefix string) bool { return strings.HasPrefix(field, prefix) }) {
			delete(out, field)
		}
	}
	return out
}

// readFigures reads the rows that `shunt bench -o json` prints, one object per line, and returns
// the compared figures of one case. A row that occurs several times, as those of a timeline do, is
// left out.
func readFigures(s bench.Suite, name string, in io.Reader) (map[Figure]float64, error) {
	fields := compared(s)
	out, repeated := map[Figure]float64{}, map[Figure]bool{}
	decoder := json.NewDecoder(in)
	for {
		var row map[string]any
		if err := decoder.Decode(&row); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("suite %s case %s: read row: %w", s.Name, name, err)
		}
		if row["case"] != name {
			continue
		}
		of := rowName(row)
		for field, value := range row {
			v, number := value.(float64)
			if _, counts := fields[field]; !counts || !number {
				continue
			}
			f := Figure{Suite: s.Name, Case: name, Of: of, Field: field}
			if _, twice := out[f]; twice {
				repeated[f] = true
			}
			out[f] = v
		}
	}
	for f := range repeated {
		delete(out, f)
	}
	return out, nil
}

// rowName returns the text fields of a row except its case, in the order of their names.
func rowName(row map[string]any) string {
	var parts []string
	for field, value := range row {
		if text, ok := value.(string); ok && field != "case" {
			parts = append(parts, field+"="+text)
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}
