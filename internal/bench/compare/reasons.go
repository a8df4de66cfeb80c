package compare

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/shuntlb/shunt/internal/bench"
)

// Reason is why a figure may be worse than before: an entry of docs/bench-reasons.yaml.
type Reason struct {
	Suite string `yaml:"suite"`
	Case  string `yaml:"case"`
	Field string `yaml:"field"`
	// Of is the row of a case with several ("engine=packet"); empty: every row.
	Of string `yaml:"of,omitempty"`
	// Of is the row of a case with several ("engine=packet"). Empty means every row.
	Ratio float64 `yaml:"ratio"`
	// Since is the commit that made the figure worse.
	Since string `yaml:"since"`
	// Reason is why that is accepted.
	Reason string `yaml:"reason"`
}

// covers returns true if the reason explains a ratio of the figure.
func (r Reason) covers(f Figure, ratio float64) bool {
	return r.Suite == f.Suite && r.Case == f.Case && r.Field == f.Field && (r.Of == "" || r.Of == f.Of) && ratio <= r.Ratio
}

// covers returns true if the reason explains a ratio of the figure.
func ReadReasons(text []byte) ([]Reason, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}
	var all []Reason
	if err := yaml.UnmarshalWithOptions(text, &all, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("read reasons: %w", err)
	}
	for i, r := range all {
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("reasons[%d].%w", i, err)
		}
	}
	return all, nil
}

// check returns an error that names the wrong field.
func (r Reason) check() error {
	s, err := bench.Find(r.Suite)
	if err != nil {
		return err
	}
	if !slices.Contains(s.Cases, r.Case) {
		return fmt.Errorf("case: %q: must be one of %s", r.Case, strings.Join(s.Cases, ", "))
	}
	if _, ok := compared(s)[r.Field]; !ok {
		return fmt.Errorf("field: %q: is not compared in suite %s", r.Field, r.Suite)
	}
	if !(r.Ratio > 1) || math.IsInf(r.Ratio, 0) {
		return fmt.Errorf("ratio: %v: must be more than 1", r.Ratio)
	}
	if r.Since == "" {
		return fmt.Errorf("since: is missing: the commit that made the figure worse")
	}
	if len(strings.Fields(r.Reason)) < 3 {
		return fmt.Errorf("reason: %q: must say why the figure may be worse", r.Reason)
	}
	return nil
}
