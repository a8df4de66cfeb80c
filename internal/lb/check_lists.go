package lb

import (
	"fmt"
	"strconv"
	"strings"
)

// StatusSet is a set of HTTP status codes in its canonical form: codes and ranges in order, without overlap, "200-299,304".
type StatusSet string

// Has tells whether a code is in the set.
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

// Headers are header fields of a request, one "Name: value" a line, in the order they are sent.
type Headers string

// All goes over the fields.
func (h Headers) All(yield func(name, value string) bool) {
	for line := range strings.SplitSeq(string(h), "\n") {
		if name, value, ok := strings.Cut(line, ": "); ok && !yield(name, value) {
			return
		}
	}
}

// Arguments are those of a program, separated by NUL; empty: none.
type Arguments string

// NewArguments joins arguments, none of which holds NUL.
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

// List is the arguments one by one.
func (a Arguments) List() []string {
	if a == "" {
		return nil
	}
	return strings.Split(string(a[:len(a)-1]), "\x00")
}
