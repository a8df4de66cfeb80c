package loop

import (
	"bytes"
	"fmt"
	"strings"
)

// maxAnswer bounds what is read of an answer, in bytes: status line and headers, or what is to hold an expected text.
const maxAnswer = 64 << 10

// parseHead reads the head of an HTTP/1 response (RFC 9112, section 4) from what came so far. It is complete when done; a fault is
// why it will never be. 1xx responses before the last one are passed over.
func parseHead(b []byte) (status int, done bool, fault string) {
	for {
		line, rest, whole := nextLine(b)
		if !whole {
			if !isHTTP(b) {
				return 0, false, malformed("HTTP response", b)
			}
			return 0, false, ""
		}
		if status, fault = parseStatusLine(line); fault != "" {
			return 0, false, fault
		}
		for {
			if line, rest, whole = nextLine(rest); !whole {
				return 0, false, ""
			}
			if len(line) == 0 {
				break
			}
			if line[0] != ' ' && line[0] != '\t' && bytes.IndexByte(line, ':') <= 0 {
				return 0, false, malformed("header line", line)
			}
		}
		if status/100 != 1 || status == 101 {
			return status, true, ""
		}
		b = rest
	}
}

// isHTTP tells whether the beginning of a line may become a status line: all of it up to the longest that is not one.
func isHTTP(b []byte) bool {
	const prefix = "HTTP/"
	n := min(len(b), len(prefix))
	return string(b[:n]) == prefix[:n] || len(b) < 64
}

// nextLine cuts the first line off, without its end.
func nextLine(b []byte) (line, rest []byte, whole bool) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		return nil, b, false
	}
	return bytes.TrimSuffix(b[:end], []byte{'\r'}), b[end+1:], true
}

func parseStatusLine(line []byte) (status int, fault string) {
	version, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return 0, malformed("HTTP response", line)
	}
	code, _, _ := bytes.Cut(bytes.TrimLeft(rest, " "), []byte{' '})
	if len(code) != 3 {
		return 0, malformed("HTTP status code", code)
	}
	for _, c := range code {
		if c < '0' || c > '9' {
			return 0, malformed("HTTP status code", code)
		}
		status = status*10 + int(c-'0')
	}
	if v := version; len(v) != len("HTTP/1.1") || string(v[:5]) != "HTTP/" || v[5] != '1' || v[6] != '.' || v[7] < '0' || v[7] > '9' {
		return 0, malformed("HTTP version", version)
	}
	return status, ""
}

// malformed quotes what is wrong, shortened.
func malformed(what string, text []byte) string {
	const most = 64
	text, _, _ = bytes.Cut(text, []byte{'\n'})
	return fmt.Sprintf("malformed %s %q", what, strings.ToValidUTF8(string(text[:min(len(text), most)]), "?"))
}
