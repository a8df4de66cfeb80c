package health

import (
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/shuntlb/shunt/internal/lb"
)

// SaidBy returns the reason of a check preceded by the check's name, because a member with several
// checks needs it. Numbers start at 0 here, and at 1 in texts.
func SaidBy(number int, check *lb.Check, words string) string {
	return "check " + strconv.Itoa(number+1) + ", " + check.KindText() + ": " + words
}

// MaxWords bounds a reason that is sent between nodes, in bytes.
const MaxWords = 160

// Told returns a reason as nodes send it: unprintable characters are escaped as in Go, and text
// beyond MaxWords is replaced by "…". It is idempotent.
func Told(words string) string {
	const cut = "…"
	out := make([]byte, 0, min(len(words), MaxWords))
	fits := 0 // this much of out leaves room for cut
	for _, r := range words {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			quoted := strconv.QuoteRuneToASCII(r)
			out = append(out, quoted[1:len(quoted)-1]...)
		} else {
			out = utf8.AppendRune(out, r)
		}
		if len(out) > MaxWords {
			return string(out[:fits]) + cut
		}
		if len(out) <= MaxWords-len(cut) {
			fits = len(out)
		}
	}
	return string(out)
}
