package lb_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestBombs: texts that the YAML parser would take gigabytes or minutes for are refused before it sees them.
func TestBombs(t *testing.T) {
	const deep = "must not nest deeper than 64"
	for name, c := range map[string]struct{ text, allowed string }{
		"anchors":   {"a: " + strings.Repeat("&a ", 1000), deep},
		"aliases":   {"a: " + strings.Repeat("*a ", 1000), deep},
		"tags":      {"a: " + strings.Repeat("!a ", 1000), deep},
		"keys":      {strings.Repeat("a: ", 1000), deep},
		"merges":    {strings.Repeat("<<: ", 1000), deep},
		"items":     {strings.Repeat("- ", 1000), deep},
		"brackets":  {strings.Repeat("[\n", 1000), deep},
		"long line": {"%" + strings.Repeat("%", 1<<20), "must be lines of at most 1048576 bytes"},
	} {
		_, err := lb.Parse(strings.NewReader(c.text), name)
		var e *lb.Error
		if !errors.As(err, &e) || len(e.Violations) != 1 || e.Violations[0].Allowed != c.allowed {
			t.Errorf("%s:\n got: %.300v\nwant: %s", name, err, c.allowed)
		}
	}
}

// TestManyFaults: the first hundred are told, of one object and of many.
func TestManyFaults(t *testing.T) {
	const object = "kind: Service\nname: a\nvip: 203.0.113.10\nendpoints:\n"
	for name, text := range map[string]string{
		"fields":    object + strings.Repeat("- {}\n", 1000),
		"values":    object + "- protocol: tcp\n  port: 80\n  backends:\n" + strings.Repeat("  - {dip: x}\n", 1000),
		"documents": strings.Repeat("--- a\n", 1000),
	} {
		_, err := lb.Parse(strings.NewReader(text), name)
		var e *lb.Error
		if !errors.As(err, &e) || len(e.Violations) != 100 {
			t.Errorf("%s: not 100 faults: %.300v", name, err)
		}
	}
}

// TestWideIsNotDeep: a list of many items on one line is no nesting.
func TestWideIsNotDeep(t *testing.T) {
	var backends []string
	for i := range 200 {
		backends = append(backends, fmt.Sprintf("{dip: 10.20.1.%d, port: 8080, host: 10.20.1.1}", i+1))
	}
	text := "kind: Service\nname: a\nvip: 203.0.113.10\nendpoints: [{protocol: tcp, port: 80, backends: [" + strings.Join(backends, ", ") + "]}]\n"
	if _, err := lb.Parse(strings.NewReader(text), "wide"); err != nil {
		t.Error(err)
	}
}
