package lb

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// MaxFileBytes limits a YAML file: it has room for 65,535 backends, or 262,144 sources, on lines of
// 100 bytes.
const MaxFileBytes = 32 << 20

// maxLineBytes limits a line, because the parser reads a line of one odd character in quadratic
// time.
const maxLineBytes = 1 << 20

// document is one YAML document: its text, and the number of lines before it.
type document struct {
	text  []byte
	lines int
}

// splitDocuments splits text at the lines that begin a document ("---") or end one ("...") (YAML
// 1.2.2 section 9.2). Text after "---" on its line keeps its column. It exists because
// goccy/go-yaml drops the documents after an empty one.
func splitDocuments(text []byte) []document {
	var (
		docs    []document
		current document
		begun   bool // current has more than white space and comments
	)
	for line, number := range lines(text) {
		if !begun {
			// Each document of concatenated files may begin with a byte order mark (YAML 1.2
			// section 5.2).
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
			if bytes.HasPrefix(line, []byte("%YAML 1.")) {
				line = append([]byte("#"), line[1:]...)
			}
		}
		if !isMarker(line) {
			current.text = append(current.text, line...)
			begun = begun || !document{text: line}.blank()
			continue
		}
		docs = append(docs, current)
		begun = len(bytes.TrimSpace(line[3:])) > 0
		current = document{lines: number, text: append([]byte("   "), line[3:]...)}
	}
	return append(docs, current)
}

// lines yields every line with its line end, and the number of lines before it.
func lines(text []byte) func(func([]byte, int) bool) {
	return func(yield func([]byte, int) bool) {
		for n := 0; len(text) > 0; n++ {
			end := bytes.IndexByte(text, '\n') + 1
			if end == 0 {
				end = len(text)
			}
			if !yield(text[:end], n) {
				return
			}
			text = text[end:]
		}
	}
}

// isMarker reports whether the line begins or ends a document.
func isMarker(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("---")) && !bytes.HasPrefix(line, []byte("...")) {
		return false
	}
	return len(line) == 3 || bytes.IndexByte([]byte(" \t\r\n"), line[3]) >= 0
}

// blank reports whether the document has only white space and comments.
func (d document) blank() bool {
	for line := range lines(d.text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// checkText returns the first violation of limits that apply to every file, with its place.
func checkText(text []byte) *Violation {
	if len(text) > MaxFileBytes {
		return &Violation{Value: fmt.Sprintf("%d bytes", len(text)), Allowed: fmt.Sprintf("must be at most %d bytes", MaxFileBytes)}
	}
	for line, number := range lines(text) {
		if len(line) > maxLineBytes {
			return &Violation{Value: fmt.Sprintf("%d bytes", len(line)), Allowed: fmt.Sprintf("must be lines of at most %d bytes", maxLineBytes), Line: number + 1, Column: 1}
		}
		for column := 0; column < len(line); {
			r, size := utf8.DecodeRune(line[column:])
			switch {
			case r == utf8.RuneError && size == 1:
				return &Violation{Allowed: "must be UTF-8", Line: number + 1, Column: column + 1}
			case r < ' ' && r != '\t' && r != '\n' && r != '\r', r == 0x7f:
				return &Violation{Value: fmt.Sprintf("%U", r), Allowed: "must not hold control characters", Line: number + 1, Column: column + 1}
			}
			column += size
		}
	}
	return nil
}
