package sched

import "time"

// given stores the last packed loads of p2c, to compute the changes that packets made since:
// connections that this mux scheduled, minus those whose end it saw. Hosts' loads do not include
// all of these yet. The zero given is empty.
type given struct {
	words map[uint16]uint64
	at    time.Time
}

// reckon returns the packed loads of members that must change: the reported load plus those
// connections since the last call that hosts could not include yet. Hosts' reports include older
// changes; no report means no change. If no load is reported at all (known is false), only the
// connections that this mux scheduled count.
func (g *given) reckon(members []Member, known bool, n News) (out []Word) {
	unseen, next := 0.0, make(map[uint16]uint64, len(members))
	if passed := n.Now.Sub(g.at); passed > 0 {
		unseen = min(float64(n.Lag)/float64(passed), 1)
	}
	for _, m := range members {
		last, step := g.words[m.ID], m.Word>>StepShift
		switch {
		case !known && step > 0:
			m.Load = float64(m.Word&scoreMask) / float64(step)
		case last > 0 && step == last>>StepShift:
			m.Load = max(m.Load+unseen*float64(int64(m.Word&scoreMask)-int64(last&scoreMask))/float64(step), 0)
		}
		word := WordOf(m)
		if next[m.ID] = word; word != m.Word {
			out = append(out, Word{m.ID, word})
		}
	}
	g.words, g.at = next, n.Now
	return out
}
