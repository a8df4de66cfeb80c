package lb

import (
	"errors"
	"fmt"
	"io"
	"slices"

	yaml "github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Parse reads strict YAML: any number of documents, one object each, with defaults filled in, each
// validated alone. If there are faults it returns no object and an *Error with every fault and its
// place.
func Parse(r io.Reader, filename string) ([]Object, error) {
	docs, err := ParseDocuments(r, filename, Whole)
	if err != nil {
		return nil, err
	}
	var objects []Object
	for _, d := range docs {
		objects = append(objects, d.Object)
	}
	return objects, nil
}

// Document is one object of a text, with the fields that the text sets.
type Document struct {
	Object Object
	// Filename is the argument of ParseDocuments.
	Filename string
	places   map[string]place
}

// Place returns the place of the field with a path, else of the field that contains it; both count
// from 1.
func (d Document) Place(path string) (line, column int) {
	p := find(d.places, path)
	return p.line, p.column
}

// Writes reports whether the document sets the field with the path "endpoints[0].port", even to its
// default.
func (d Document) Writes(path string) bool {
	_, ok := d.places[path]
	return ok
}

// Extent is the required part of each object in a text.
type Extent bool

// Whole objects must be valid alone. A Part may leave out fields that other sources set.
const (
	Whole Extent = false
	Part  Extent = true
)

// ParseDocuments is like Parse, and also returns the fields that are set. Parts are not validated.
func ParseDocuments(r io.Reader, filename string, extent Extent) ([]Document, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filename, err)
	}
	if v := checkText(text); v != nil {
		return nil, &Error{filename, []Violation{*v}}
	}
	var (
		objects []Document
		faulty  []Violation
		seen    = map[string]int{}
	)
	for _, doc := range splitDocuments(text) {
		if doc.blank() {
			continue
		}
		if len(faulty) >= maxFaults {
			break
		}
		o, faults := parseDocument(doc, extent)
		o.Filename = filename
		faulty = append(faulty, faults...)
		if o.Object == nil {
			continue
		}
		at := o.places[""]
		ref := Ref(o.Object.Kind(), o.Object.ObjectName())
		if first, twice := seen[ref]; twice {
			faulty = append(faulty, Violation{Field: ref, Allowed: fmt.Sprintf("%s, first on line %d", allowedOnce, first), Line: at.line, Column: at.column})
		} else {
			seen[ref] = at.line
		}
		objects = append(objects, o)
	}
	if len(faulty) > 0 {
		return nil, &Error{filename, faulty}
	}
	return objects, nil
}

// parseDocument reads one object; it returns none if there are faults.
func parseDocument(doc document, extent Extent) (out Document, faulty []Violation) {
	root, fault := parseTree(doc)
	if fault != nil {
		return out, []Violation{*fault}
	}
	d := &decoder{lines: doc.lines, places: map[string]place{}}
	o, ref := d.object(root)
	if len(d.found) == 0 && extent == Whole {
		d.faults = *validate(o)
	}
	if len(d.found) == 0 {
		return Document{Object: o, places: d.places}, nil
	}
	for i, v := range d.found {
		p := find(d.places, v.Field)
		d.found[i].Line, d.found[i].Column = p.line, p.column
	}
	slices.SortStableFunc(d.found, func(a, b Violation) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	if ref != "" {
		d.prefixed(ref)
	}
	return out, d.found
}

// find returns the place of a field, or of the nearest field that contains it.
func find(places map[string]place, path string) place {
	for path != "" {
		if p, ok := places[path]; ok {
			return p
		}
		end := len(path) - 1
		for end > 0 && path[end] != '.' && path[end] != '[' {
			end--
		}
		path = path[:end]
	}
	return places[""]
}

// parseTree parses the one document of doc. The library guarantees that it does not panic; a panic
// is still returned as a fault.
func parseTree(doc document) (root ast.Node, fault *Violation) {
	first := place{doc.lines + 1, 1}
	defer func() {
		if p := recover(); p != nil {
			root, fault = nil, &Violation{Value: clip(fmt.Sprint(p)), Allowed: "must be YAML", Line: first.line, Column: first.column}
		}
	}()
	if depth := flowDepth(doc.text); depth > maxDepth {
		return nil, &Violation{Allowed: fmt.Sprintf("must not nest deeper than %d", maxDepth), Line: first.line, Column: first.column}
	}
	if tooWide(doc.text) {
		return nil, &Violation{Allowed: fmt.Sprintf("must not hold a mapping of more than %d keys", maxKeys), Line: first.line, Column: first.column}
	}
	file, err := parser.ParseBytes(doc.text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, syntaxFault(doc, err)
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return nil, &Violation{Allowed: "must be one YAML mapping per document", Line: first.line, Column: first.column}
	}
	return file.Docs[0].Body, nil
}

// syntaxFault converts an error of the library to a violation with its place.
func syntaxFault(doc document, err error) *Violation {
	v := &Violation{Allowed: "must be YAML: " + clip(err.Error()), Line: doc.lines + 1, Column: 1}
	var at yaml.Error
	if errors.As(err, &at) {
		v.Allowed = "must be YAML: " + at.GetMessage()
		if t := at.GetToken(); t != nil && t.Position != nil {
			v.Line, v.Column = doc.lines+t.Position.Line, t.Position.Column
		}
	}
	return v
}

// maxDepth bounds nesting; the schema needs 6.
const maxDepth = 64

// flowDepth returns an upper bound of the nesting of brackets, list items, keys, anchors and tags
// that is not by indentation.
func flowDepth(text []byte) int {
	deepest, depth := 0, 0
	for line := range lines(text) {
		marks := 0
		for i, c := range line {
			switch {
			case c == '[' || c == '{':
				depth++
				marks = 0
			case (c == ']' || c == '}') && depth > 0:
				depth--
			case c == ',':
				marks = 0
			case isMark(line, i):
				marks++
			}
			deepest = max(deepest, depth+marks)
		}
	}
	return deepest
}

// isMark reports whether line[i] can begin another level on the same line: a list item, a key, an
// anchor, an alias, a tag.
func isMark(line []byte, i int) bool {
	switch line[i] {
	case '-', '?', ':':
		return i+1 < len(line) && line[i+1] == ' '
	case '&', '*', '!':
		return i == 0 || line[i-1] == ' ' || line[i-1] == '\t'
	}
	return false
}
