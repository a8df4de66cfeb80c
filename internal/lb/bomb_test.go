package lb_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// TestBombs: texts for which the YAML parser would need gigabytes or minutes are refused before it
// reads them.
func TestBombs(t *testing.T) {
	const (
		deep = "must not nest deeper than 64"
		wide = "must not hold a mapping of more than 1000 keys"
	)
	for name, c := range map[string]struct{ text, allowed string }{
		"anchors":        {"a: " + strings.Repeat("&a ", 1000), deep},
		"aliases":        {"a: " + strings.Repeat("*a ", 1000), deep},
		"tags":           {"a: " + strings.Repeat("!a ", 1000), deep},
		"keys":           {strings.Repeat("a: ", 1000), deep},
		"merges":         {strings.Repeat("<<: ", 1000), deep},
		"items":          {strings.Repeat("- ", 1000), deep},
		"equal keys":     {strings.Repeat("kind: Tenant\n", 300_000), wide},
		"empty keys":     {strings.Repeat("kind:\r\n", 300_000), wide},
		"asked keys":     {strings.Repeat("? a\n", 300_000), wide},
		"keys of items":  {"a:\n- b: 1\n" + strings.Repeat("  b: 1\n", 300_000), wide},
		"apart":          {strings.Repeat("a:\n- b\n\n# c\n", 300_000), wide},
		"keys in braces": {"a: {" + strings.Repeat("b: 1,\n", 300_000) + "}", wide},
		"after comments": {"# [{\n" + strings.Repeat("kind: Tenant\n", 300_000), wide},
		"brackets":       {strings.Repeat("[\n", 1000), deep},
		"long line":      {"%" + strings.Repeat("%", 1<<20), "must be lines of at most 1048576 bytes"},
	} {
		_, err := lb.Parse(strings.NewReader(c.text), name)
		var e *lb.Error
		if !errors.As(err, &e) || len(e.Violations) != 1 || e.Violations[0].Allowed != c.allowed {
			t.Errorf("%s:\n got: %.300v\nwant: %s", name, err, c.allowed)
		}
	}
}

// TestManyFaults: the first hundred faults are returned, of one object and of many.
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

// TestWideIsNotDeep: a list of many items on one line does not count as nesting.
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

// TestLongIsNotWide: lists of many items do not count as mappings of many keys, in any form.
func TestLongIsNotWide(t *testing.T) {
	const many = 1100
	for name, item := range map[string]func(i int) string{
		"one line": func(i int) string {
			return fmt.Sprintf("  - {dip: 10.20.%d.%d, port: 8080, host: 10.20.1.1}\n", i/250, i%250+1)
		},
		"lines": func(i int) string {
			return fmt.Sprintf("  - dip: 10.20.%d.%d\n    port: 8080\n    host: 10.20.1.1\n", i/250, i%250+1)
		},
	} {
		text := "kind: Service\nname: a\nvip: 203.0.113.10\nendpoints:\n- protocol: tcp\n  port: 80\n  backends:\n"
		for i := range many {
			text += item(i)
		}
		if _, err := lb.Parse(strings.NewReader(text), name); err != nil {
			t.Errorf("%s: %.300v", name, err)
		}
	}
	var flow []string
	for i := range many {
		flow = append(flow, fmt.Sprintf("  {dip: '2001:db8::%x', port: 8080, host: 10.20.1.1}", i+1))
	}
	text := "kind: Service\nname: a\nvip: 2001:db8:f::1\nendpoints:\n- protocol: tcp\n  port: 80\n  backends: [\n" + strings.Join(flow, ",\n") + "]\n"
	if _, err := lb.Parse(strings.NewReader(text), "braces"); err != nil {
		t.Errorf("braces: %.300v", err)
	}
}
