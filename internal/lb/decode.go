package lb

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/goccy/go-yaml/ast"
)

// place is the position of a field; both count from 1.
type place struct{ line, column int }

// decoder converts one document's tree into an object and records every fault and every field's
// place.
type decoder struct {
	faults
	lines  int // before the document
	places map[string]place
}

// field is a possible field of a mapping. A field without set is recognized but not built.
type field struct {
	name string
	set  func(path string, n ast.Node)
}

// note records the place of path: a mapping without braces begins at its first field.
func (d *decoder) note(path string, n ast.Node) {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		n = m.Values[0].Key
	}
	if at := n.GetToken(); at != nil && at.Position != nil {
		d.places[path] = place{d.lines + at.Position.Line, at.Position.Column}
	}
}

// mapping passes each field of n to its setter; others are faults. It returns the names of the
// fields.
func (d *decoder) mapping(path string, n ast.Node, fields ...field) map[string]bool {
	entries, ok := n.(*ast.MappingNode)
	if !ok {
		d.wrongType(path, n, "must be a mapping")
		return nil
	}
	seen := map[string]bool{}
	for _, entry := range entries.Values {
		key, ok := entry.Key.(*ast.StringNode)
		if !ok {
			d.note(join(path, "?"), entry.Key)
			d.add(join(path, "?"), show(entry.Key), "must be a plain field name")
			continue
		}
		at := join(path, clip(key.Value))
		index := slices.IndexFunc(fields, func(f field) bool { return f.name == key.Value })
		switch {
		case seen[key.Value]:
			d.note(at, key)
			d.add(at, "", "must not be given twice")
		case index < 0:
			d.note(at, key)
			d.add(at, "", "unknown field, "+anyOf(names(fields)...)+MeantFor(key.Value, names(fields)))
		case fields[index].set == nil:
			d.note(at, key)
			d.add(at, "", NotSupported)
		default:
			d.note(at, entry.Value)
			fields[index].set(at, entry.Value)
		}
		seen[key.Value] = true
	}
	return seen
}

// list passes each item of n to item, in order.
func (d *decoder) list(path string, n ast.Node, item func(path string, n ast.Node)) {
	items, ok := n.(*ast.SequenceNode)
	if !ok {
		d.wrongType(path, n, "must be a list")
		return
	}
	for i, value := range items.Values {
		at := fmt.Sprintf("%s[%d]", path, i)
		d.note(at, value)
		item(at, value)
	}
}

// listOrOne accepts a single item without its brackets.
func (d *decoder) listOrOne(path string, n ast.Node, item func(path string, n ast.Node)) {
	if _, ok := n.(*ast.SequenceNode); ok {
		d.list(path, n, item)
		return
	}
	at := path + "[0]"
	d.note(at, n)
	item(at, n)
}

// text reads a string of one line.
func (d *decoder) text(path string, n ast.Node) string {
	if s, ok := n.(*ast.StringNode); ok {
		return s.Value
	}
	allowed := "must be a string"
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		allowed = "must be a string, in quotes"
	case *ast.LiteralNode:
		allowed = "must be a string of one line"
	}
	d.wrongType(path, n, allowed)
	return ""
}

// boolean reads true or false.
func (d *decoder) boolean(path string, n ast.Node) bool {
	if b, ok := n.(*ast.BoolNode); ok && (b.Token.Value == "true" || b.Token.Value == "false") {
		return b.Value
	}
	d.wrongType(path, n, "must be true or false")
	return false
}

// number reads a decimal number of at most the bits; allowed is the fault otherwise.
func (d *decoder) number(path string, n ast.Node, bits int, allowed string) uint64 {
	if i, ok := n.(*ast.IntegerNode); ok && decimal.MatchString(i.Token.Value) {
		if v, err := strconv.ParseUint(i.Token.Value, 10, bits); err == nil {
			return v
		}
	}
	d.wrongType(path, n, allowed)
	return 0
}

// port reads a port.
func (d *decoder) port(path string, n ast.Node) uint16 {
	if s, quoted := n.(*ast.StringNode); quoted {
		_, allowed := ParsePort(s.Value)
		if allowed == "" {
			allowed = allowedPort + ", without quotes"
		}
		d.add(path, s.Value, allowed)
		return 0
	}
	return uint16(d.counting(path, n, 16, allowedPort))
}

// ports reads the ports of an endpoint.
func (d *decoder) ports(path string, n ast.Node) (port, end uint16) {
	s, quoted := n.(*ast.StringNode)
	if !quoted {
		return uint16(d.counting(path, n, 16, allowedPorts)), 0
	}
	port, end, allowed := ParsePorts(s.Value)
	if allowed == "" && end == 0 {
		allowed = allowedPort + ", without quotes"
	}
	d.check(path, s.Value, allowed)
	return port, end
}

// counting reads a number of at least 1; allowed is the fault otherwise.
func (d *decoder) counting(path string, n ast.Node, bits int, allowed string) uint64 {
	v := d.number(path, n, bits, allowed)
	if v == 0 && !d.has(path) {
		d.add(path, show(n), allowed)
	}
	return v
}

// positive reads a number of 1 to 255. It refuses 0, which would mean a missing field.
func (d *decoder) positive(path string, n ast.Node, allowed string) uint8 {
	return uint8(d.counting(path, n, 8, allowed))
}

// given reads a string that is not empty, because an empty one would mean a missing field.
func (d *decoder) given(path string, n ast.Node, allowed string) string {
	s := d.text(path, n)
	if s == "" && !d.has(path) {
		d.add(path, show(n), allowed)
	}
	return s
}

// idleTime reads a duration other than 0.
func (d *decoder) idleTime(path string, n ast.Node) time.Duration {
	return d.span(path, n, allowedIdle)
}

// span reads a duration other than 0, because 0 would mean a missing field.
func (d *decoder) span(path string, n ast.Node, allowed string) time.Duration {
	v := d.duration(path, n)
	if v == 0 && !d.has(path) {
		d.add(path, show(n), allowed)
	}
	return v
}

// duration reads Go's form: 500ms, 1s, 1h.
func (d *decoder) duration(path string, n ast.Node) time.Duration {
	if s, ok := n.(*ast.StringNode); ok {
		if v, err := time.ParseDuration(s.Value); err == nil {
			return v
		}
	}
	d.wrongType(path, n, "must be a duration such as 500ms or 1s")
	return 0
}

// addr reads an address.
func (d *decoder) addr(path string, n ast.Node) netip.Addr {
	return parsed(d, path, n, ParseAddr)
}

// prefix reads a prefix.
func (d *decoder) prefix(path string, n ast.Node) netip.Prefix {
	return parsed(d, path, n, ParsePrefix)
}

// parsed reads a scalar with one of the functions of scalar.go.
func parsed[T any](d *decoder, path string, n ast.Node, parse func(string) (T, string)) T {
	s, ok := n.(*ast.StringNode)
	if !ok {
		_, allowed := parse("")
		d.wrongType(path, n, allowed)
		var zero T
		return zero
	}
	v, allowed := parse(s.Value)
	if allowed != "" {
		d.add(path, s.Value, allowed)
	}
	return v
}

// wrongType adds a fault for a value of another type than allowed.
func (d *decoder) wrongType(path string, n ast.Node, allowed string) { d.add(path, show(n), allowed) }

// show returns a node for a message: a scalar's text, or its type.
func show(n ast.Node) string {
	switch n := n.(type) {
	case *ast.MappingNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode, nil:
		return "null"
	case *ast.AliasNode, *ast.AnchorNode:
		return "an anchor or alias"
	case *ast.TagNode:
		return "a tag"
	case *ast.LiteralNode:
		return "a block of text"
	case *ast.MergeKeyNode:
		return "<<"
	case *ast.StringNode:
		return n.Value
	case ast.ScalarNode:
		return n.GetToken().Value
	}
	return "something else"
}

// names returns the names of fields that are built.
func names(fields []field) []string {
	var out []string
	for _, f := range fields {
		if f.set != nil {
			out = append(out, f.name)
		}
	}
	return out
}

// join appends a field's name to a path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// maxShown is the maximum number of bytes of a value in a message.
const maxShown = 80

// clip makes any value printable on one line.
func clip(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		s = strconv.Quote(s)
	}
	if len(s) > maxShown {
		s = strings.ToValidUTF8(s[:maxShown], "") + "…"
	}
	return s
}
