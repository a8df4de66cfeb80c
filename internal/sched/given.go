package sched

import "time"

// given remembers the words that p2c had last, so that what packets made of them since is known: connections that this mux gave, without those that it saw end.
// Hosts have not seen all of these when they tell loads. The zero given remembers nothing.
type given struct {
	words map[uint16]uint64
	at    time.Time
}

// reckon are the words of members that are to be other ones than they are: what is told of a load, and what of the connections since the last time hosts had no time to
// see. What is older they have told, and of whom they told nothing nothing changed. With nothing told of anybody (known is false) what this mux gave is all there is.
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
