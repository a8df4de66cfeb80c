package health

const (
	// PathFall is how many probes without an answer in a row make a machine unreachable, PathRise how many answers in a row end that.
	PathFall, PathRise = 2, 2
	// pathUnconfirmed is how many probes a machine must leave unanswered from the first one on before it counts as one that does not answer at all.
	pathUnconfirmed = 10
)

// Path tells whether a machine can be reached, from probes of its address. Silence counts only after the machine answered once: some filter such probes.
type Path struct {
	answered, lost bool
	good, silent   uint32
}

// Observe takes in whether the machine answered a probe and reports whether Lost changed.
func (p *Path) Observe(answered bool) (changed bool) {
	if answered {
		p.answered, p.silent = true, 0
		if p.good++; p.lost && p.good >= PathRise {
			p.lost = false
			return true
		}
		return false
	}
	p.good, p.silent = 0, min(p.silent+1, pathUnconfirmed)
	if p.answered && !p.lost && p.silent >= PathFall {
		p.lost = true
		return true
	}
	return false
}

// Lost reports that the machine answered before and does not now.
func (p *Path) Lost() bool { return p.lost }

// Unconfirmed reports that the machine never answered, though it had time to.
func (p *Path) Unconfirmed() bool { return !p.answered && p.silent >= pathUnconfirmed }

// Answered reports that the machine answered at some time, so that its silence counts.
func (p *Path) Answered() bool { return p.answered }
