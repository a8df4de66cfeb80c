package lb

import (
	"slices"
	"strings"
)

// nearEdits is the maximum number of edits between a misspelled text and the choice that it is
// taken for. The limit is a third of the letters, at least one, if that is less.
const nearEdits = 2

// Near returns the choice that word is most likely meant to be: the one with the fewest letters
// inserted, left out, replaced or swapped with their neighbour, the first of several. Case, "_" and
// "-" do not count, so "tunnel_sources" is near "tunnelSources". It returns "" if no choice is
// near.
func Near(word string, choices []string) string {
	plain := strings.NewReplacer("_", "", "-", "")
	w := []rune(strings.ToLower(plain.Replace(word)))
	most := min(nearEdits, max(1, len(w)/3))
	best, fewest := "", most+1
	for _, c := range choices {
		letters := []rune(strings.ToLower(plain.Replace(c)))
		if diff := len(letters) - len(w); diff > most || -diff > most || len(w) == 0 {
			continue
		}
		if n := editDistance(w, letters); n < fewest {
			best, fewest = c, n
		}
	}
	return best
}

// MeantFor returns "; did you mean CHOICE?" for the choice near the argument, and "" without one:
// the end of a text with the allowed values.
func MeantFor(word string, choices []string) string {
	if near := Near(word, choices); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

// editDistance counts the letters inserted, left out, replaced or swapped with their neighbour
// between a and b (optimal string alignment).
func editDistance(a, b []rune) int {
	above, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = slices.Min([]int{row[j] + 1, next[j-1] + 1, row[j-1] + cost})
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], above[j-2]+1)
			}
		}
		above, row = row, next
	}
	return row[len(b)]
}
