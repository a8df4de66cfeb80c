package health

import "testing"

func TestPath(t *testing.T) {
	for name, c := range map[string]struct {
		probes            string // + answered, - silent
		lost, unconfirmed bool
		changes           int
	}{
		"new":                       {"", false, false, 0},
		"never answered, briefly":   {"---------", false, false, 0},
		"never answered":            {"----------", false, true, 0},
		"one lost probe":            {"+-+-+-", false, false, 0},
		"lost":                      {"+--", true, false, 1},
		"one answer is not enough":  {"+--+", true, false, 1},
		"answers must be in a row":  {"+--+-+", true, false, 1},
		"back":                      {"+--++", false, false, 2},
		"lost again":                {"+--++--", true, false, 3},
		"an answer after long":      {"-----------+", false, false, 0},
		"silence after that counts": {"-----------+--", true, false, 1},
	} {
		var p Path
		changes := 0
		for _, probe := range c.probes {
			if p.Observe(probe == '+') {
				changes++
			}
		}
		if p.Lost() != c.lost || p.Unconfirmed() != c.unconfirmed || changes != c.changes {
			t.Errorf("%s: lost %t, unconfirmed %t, %d changes; want %+v", name, p.Lost(), p.Unconfirmed(), changes, c)
		}
	}
}
