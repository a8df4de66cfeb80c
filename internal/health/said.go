package health

import (
	"strconv"

	"github.com/shuntlb/shunt/internal/lb"
)

// SaidBy are the words of a check with its name in front: with several checks words alone do not tell whose they are. Numbers are
// from 0 here, and from 1 for people.
func SaidBy(number int, check *lb.Check, words string) string {
	return "check " + strconv.Itoa(number+1) + ", " + check.KindText() + ": " + words
}
