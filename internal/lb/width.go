package lb

import "bytes"

// maxKeys bounds the keys of one mapping; the schema has 30 at most. The parser compares each with every other one.
const maxKeys = 1000

// tooWide tells whether a mapping has more than maxKeys keys, as far as lines, indentation and brackets tell: a list may be as long as
// it likes. In what is no YAML it may be wrong.
func tooWide(text []byte) bool {
	var flow []bracket
	keys := map[int]int{} // of block mappings, by column
	for line := range lines(text) {
		line = withoutComment(line)
		content := bytes.TrimLeft(line, " ")
		if len(bytes.TrimSpace(content)) == 0 {
			continue
		}
		if len(flow) == 0 {
			column := len(line) - len(content)
			for c := range keys {
				if c > column {
					delete(keys, c)
				}
			}
			if isKey(content) {
				keys[column]++
			}
			if keys[column] > maxKeys {
				return true
			}
		}
		for _, c := range content {
			switch {
			case c == '[' || c == '{':
				flow = append(flow, bracket{mapping: c == '{'})
			case (c == ']' || c == '}') && len(flow) > 0:
				flow = flow[:len(flow)-1]
			case c == ',' && len(flow) > 0:
				in := &flow[len(flow)-1]
				if in.items++; in.mapping && in.items > maxKeys {
					return true
				}
			}
		}
	}
	return false
}

// bracket is one that is open.
type bracket struct {
	mapping bool
	items   int
}

// isKey tells whether a line without its indentation begins a key of a block mapping.
func isKey(content []byte) bool {
	content = bytes.TrimRight(content, " \t\r\n")
	if bytes.HasPrefix(content, []byte("- ")) || bytes.Equal(content, []byte("-")) {
		return false
	}
	return content[0] == '?' || bytes.Contains(content, []byte(": ")) || bytes.HasSuffix(content, []byte(":"))
}

// withoutComment cuts a line where a comment begins. A # in quotes counts too: the schema has none.
func withoutComment(line []byte) []byte {
	for i, c := range line {
		if c == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return line[:i]
		}
	}
	return line
}
