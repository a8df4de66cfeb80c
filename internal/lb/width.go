package lb

import "bytes"

// maxKeys limits the keys of one mapping, because the parser compares each with all others; the
// schema has at most 30.
const maxKeys = 1000

// tooWide reports whether a mapping has more than maxKeys keys, judged by lines, indentation and
// brackets. Lists may have any length. For text that is not YAML the result may be wrong.
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

// bracket is an open bracket.
type bracket struct {
	mapping bool
	items   int
}

// isKey reports whether a line without its indentation begins a key of a block mapping.
func isKey(content []byte) bool {
	content = bytes.TrimRight(content, " \t\r\n")
	if bytes.HasPrefix(content, []byte("- ")) || bytes.Equal(content, []byte("-")) {
		return false
	}
	return content[0] == '?' || bytes.Contains(content, []byte(": ")) || bytes.HasSuffix(content, []byte(":"))
}

// withoutComment cuts a line at the begin of a comment. It also cuts at a # in quotes, which the
// schema does not use.
func withoutComment(line []byte) []byte {
	for i, c := range line {
		if c == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return line[:i]
		}
	}
	return line
}
