package loop

import (
	"bytes"
	"fmt"
	"strings"
)

// maxAnswer bounds the bytes read of an answer: status line and headers, or the bytes searched for
// an expected text.
const maxAnswer = 64 << 10

// parseHead parses the head of an HTTP/1 response (RFC 9112, section 4) from the bytes received so
// far. done: the head is complete. fault: the reason why it can never be valid. 1xx responses
// before the final one are skipped.
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

// isHTTP reports whether the beginning of a line may become a status line. A line shorter than 64
// bytes always may, so that the message about another protocol can quote it.
func isHTTP(b []byte) bool {
	const prefix = "HTTP/"
	n := min(len(b), len(prefix))
	return string(b[:n]) == prefix[:n] || len(b) < 64
}

// nextLine cuts off the first line, without its end.
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

// malformed returns a fault that quotes the text, shortened.
func malformed(what string, text []byte) string {
	const most = 64
	text, _, _ = bytes.Cut(text, []byte{'\n'})
	return fmt.Sprintf("malformed %s %q", what, strings.ToValidUTF8(string(text[:min(len(text), most)]), "?"))
}
