package health

import (
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/shuntlb/shunt/internal/lb"
)

// SaidBy are the words of a check with its name in front: with several checks words alone do not tell whose they are. Numbers are
// from 0 here, and from 1 for people.
func SaidBy(number int, check *lb.Check, words string) string {
	return "check " + strconv.Itoa(number+1) + ", " + check.KindText() + ": " + words
}

// MaxWords bounds words that are told from node to node, in bytes.
const MaxWords = 160

// Told are words as they are told from node to node: what is not printable is escaped as in Go, and of what is longer than MaxWords
// only the beginning is left, with … behind it. Words that were told stay as they are.
func Told(words string) string {
	const cut = "…"
	out := make([]byte, 0, min(len(words), MaxWords))
	fits := 0 // so much of out leaves room for cut
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
