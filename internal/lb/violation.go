package lb

import (
	"fmt"
	"strings"
)

// Violation is one fault: the field, its value, and the allowed values.
type Violation struct {
	// Field is the object and the path into it: "services/web: endpoints[0].port".
	Field string
	// Value is the value as written; empty when there is none to show.
	Value string
	// Allowed completes "FIELD: VALUE: …".
	Allowed string
	// Line and Column count from 1; 0 when the object was not read from text.
	Line, Column int
}

// String returns "field: value: allowed".
func (v Violation) String() string {
	parts := make([]string, 0, 3)
	for _, s := range []string{v.Field, v.Value, v.Allowed} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// Error holds all faults of one file. Parse returns it.
type Error struct {
	Filename   string
	Violations []Violation
}

// Error returns one line per violation: "file:line:column: field: value: allowed".
func (e *Error) Error() string {
	lines := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		lines[i] = v.String()
		if v.Line > 0 {
			lines[i] = fmt.Sprintf("%s:%d:%d: %s", e.Filename, v.Line, v.Column, v)
		} else if e.Filename != "" {
			lines[i] = e.Filename + ": " + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}

// NotSupported is the Allowed text of options that are designed but not built.
const NotSupported = "not supported by this version"
