package lb

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// StatusSet is a set of HTTP status codes in canonical form: ordered codes and ranges that neither
// overlap nor touch, "200-299,304".
type StatusSet string

const allowedStatus = "must be a status from 100 to 599, or a range such as 200-299"

type statusRange struct{ low, high int }

// StatusText returns the text of a range of status codes: a single code if low and high are equal.
func StatusText(low, high int) string {
	if low == high {
		return strconv.Itoa(low)
	}
	return fmt.Sprintf("%d-%d", low, high)
}

// parseStatus reads "304" or "200-299".
func parseStatus(s string) (r statusRange, allowed string) {
	first, last, ranged := strings.Cut(s, "-")
	if !ranged {
		last = first
	}
	low, err1 := strconv.Atoi(first)
	high, err2 := strconv.Atoi(last)
	if err1 != nil || err2 != nil || len(first) != 3 || len(last) != 3 || low < 100 || high > 599 || low > high {
		return r, allowedStatus
	}
	return statusRange{low, high}, ""
}

// NewStatusSet returns the codes and ranges in canonical form. If one is invalid, bad is its index
// and allowed the fault.
func NewStatusSet(list []string) (s StatusSet, bad int, allowed string) {
	ranges := make([]statusRange, len(list))
	for i, text := range list {
		if ranges[i], allowed = parseStatus(text); allowed != "" {
			return "", i, allowed
		}
	}
	slices.SortFunc(ranges, func(a, b statusRange) int { return cmp.Compare(a.low, b.low) })
	var joined []statusRange
	for _, r := range ranges {
		if n := len(joined); n > 0 && r.low <= joined[n-1].high+1 {
			joined[n-1].high = max(joined[n-1].high, r.high)
			continue
		}
		joined = append(joined, r)
	}
	texts := make([]string, len(joined))
	for i, r := range joined {
		texts[i] = StatusText(r.low, r.high)
	}
	return StatusSet(strings.Join(texts, ",")), 0, ""
}

// List returns the codes and ranges one by one.
func (s StatusSet) List() []string {
	if s == "" {
		return nil
	}
	return strings.Split(string(s), ",")
}

// Has reports whether a code is in the set.
func (s StatusSet) Has(code int) bool {
	for part := range strings.SplitSeq(string(s), ",") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		low, err1 := strconv.Atoi(first)
		high, err2 := strconv.Atoi(last)
		if err1 == nil && err2 == nil && low <= code && code <= high {
			return true
		}
	}
	return false
}

// Headers holds the header fields of a request, one "Name: value" a line, in sending order.
type Headers string

// Add appends a field. It returns the fault of a field that a request cannot have.
func (h *Headers) Add(name, value string) (allowed string) {
	if allowed = wrongHeader(name, value); allowed != "" {
		return allowed
	}
	if *h != "" {
		*h += "\n"
	}
	*h += Headers(name + ": " + value)
	return ""
}

// All iterates over the fields.
func (h Headers) All(yield func(name, value string) bool) {
	for line := range strings.SplitSeq(string(h), "\n") {
		if name, value, ok := strings.Cut(line, ": "); ok && !yield(name, value) {
			return
		}
	}
}

// List returns the fields one by one, "Name: value".
func (h Headers) List() []string {
	if h == "" {
		return nil
	}
	return strings.Split(string(h), "\n")
}

// ownHeaders lists the fields that the request sets itself, or that would change its format.
var ownHeaders = []string{"host", "content-length", "transfer-encoding", "connection"}

// wrongHeader returns the fault of a header field (RFC 9110 sections 5.1 and 5.5); empty if there
// is none.
func wrongHeader(name, value string) string {
	switch {
	case !token(name, maxHeaderName):
		return fmt.Sprintf("must have a name of letters, digits and any of !#$%%&'*+-.^_`|~, at most %d bytes", maxHeaderName)
	case slices.Contains(ownHeaders, strings.ToLower(name)):
		return "must not be Host, Content-Length, Transfer-Encoding or Connection, which the request has by itself"
	case strings.Trim(value, " \t") != value || strings.ContainsFunc(value, func(r rune) bool { return r != '\t' && (r < ' ' || r > '~') }):
		return "must have a value of printable ASCII, without spaces around it"
	}
	return ""
}

// token reports whether s is a token (RFC 9110 section 5.6.2) of at most max bytes.
func token(s string, max int) bool {
	return s != "" && len(s) <= max && !strings.ContainsFunc(s, func(r rune) bool {
		return r > '~' || !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// Arguments holds the arguments of a program, each ended by NUL; empty: none.
type Arguments string

// NewArguments joins arguments, none of which may contain NUL.
func NewArguments(list []string) (Arguments, error) {
	for _, a := range list {
		if strings.ContainsRune(a, 0) {
			return "", fmt.Errorf("argument %q: must hold no NUL", a)
		}
	}
	if len(list) == 0 {
		return "", nil
	}
	return Arguments(strings.Join(list, "\x00") + "\x00"), nil
}

// List returns the arguments one by one.
func (a Arguments) List() []string {
	if a == "" {
		return nil
	}
	return strings.Split(string(a[:len(a)-1]), "\x00")
}
