package health

const (
	// PathFall is how many probes in a row without a reply make a machine unreachable, PathRise how
	// many replies in a row end that.
	PathFall, PathRise = 2, 2
	// pathUnconfirmed is how many probes a machine must leave without a reply from the first one on
	// before it counts as one that never replies.
	pathUnconfirmed = 10
)

// Path tracks whether a machine can be reached, from probes of its address. Silence counts only
// after the machine replied once, because some machines filter such probes.
type Path struct {
	answered, lost bool
	good, silent   uint32
}

// Observe records whether the machine replied to a probe and reports whether Lost changed.
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

// Lost reports whether the machine replied before and does not now.
func (p *Path) Lost() bool { return p.lost }

// Unconfirmed reports whether the machine never replied to pathUnconfirmed probes or more.
func (p *Path) Unconfirmed() bool { return !p.answered && p.silent >= pathUnconfirmed }

// Answered reports whether the machine ever replied, so that its silence counts.
func (p *Path) Answered() bool { return p.answered }
