package health

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestTold(t *testing.T) {
	for in, want := range map[string]string{
		"connection refused":                       "connection refused",
		"größer":                                   "größer",
		"a\nb\x1b[31m":                             `a\nb\x1b[31m`,
		"\xff\u202e":                               `\ufffd\u202e`,
		strings.Repeat("x", MaxWords):              strings.Repeat("x", MaxWords),
		strings.Repeat("x", MaxWords+1):            strings.Repeat("x", MaxWords-3) + "…",
		strings.Repeat("x", MaxWords-5) + "\n\n\n": strings.Repeat("x", MaxWords-5) + `\n` + "…",
		"": "",
	} {
		if got := Told(in); got != want {
			t.Errorf("%q is told as %q, want %q", in, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "words"))
		got := Told(in)
		if len(got) > MaxWords || !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) || Told(got) != got {
			t.Fatalf("%q is told as %q", in, got)
		}
	})
}
