package health

// Margin is how many percentage points above the threshold the healthy share must be to deactivate
// backups, or to end a panic. Without it a share near the threshold would move flows again and
// again.
const Margin = 5

// Standing is a member's contribution to its endpoint's decision.
type Standing struct {
	// Weight in the ring. Members of weight 0 take no new flows and do not count.
	Weight uint16
	Backup bool
	Alive  bool
	// Asked: there is a result, good or bad.
	Asked bool
}

// Tally is the sum over an endpoint's members. The zero value has no members.
type Tally struct {
	// regular are the members that are not backups, spare the backups.
	regular, spare weights
	// Numbers of members with weight: all, alive, asked, backups.
	members, alive, asked, backups int
}

// weights are sums of members' weights: of all, of those alive, and of those that are alive or have
// no result.
type weights struct{ all, up, may uint64 }

func (w weights) plus(o weights) weights { return weights{w.all + o.all, w.up + o.up, w.may + o.may} }

// below reports whether part is less than percent of the total weight.
func (w weights) below(part, percent uint64) bool { return part*100 < percent*w.all }

// Add adds a member.
func (t *Tally) Add(s Standing) { t.count(s, 1) }

// Remove removes a member that was added with this standing.
func (t *Tally) Remove(s Standing) { t.count(s, -1) }

func (t *Tally) count(s Standing, by int) {
	if s.Weight == 0 {
		return
	}
	t.members += by
	if s.Alive {
		t.alive += by
	}
	if s.Asked {
		t.asked += by
	}
	of := &t.regular
	if s.Backup {
		t.backups += by
		of = &t.spare
	}
	// Unsigned sums wrap around and back.
	weight := uint64(by) * uint64(s.Weight)
	of.all += weight
	if s.Alive {
		of.up += weight
	}
	if s.Alive || !s.Asked {
		of.may += weight
	}
}

// Decision is the effect of health on a whole endpoint.
type Decision struct {
	// Backup: backups take part.
	Backup bool
	// FailOpen: all members are treated as alive, because none is.
	FailOpen bool
	// Panic: all members are treated as alive, because too few are.
	Panic bool
}

// Open reports whether all members are treated as alive.
func (d Decision) Open() bool { return d.FailOpen || d.Panic }

// Policy is an endpoint's configuration for decisions.
type Policy struct {
	// BackupBelow is the healthy share of weight among the members that are not backups, in
	// percent, below which backups take part.
	BackupBelow uint8
	// PanicBelow is the healthy share of weight among the members that take part, in percent, below
	// which all are treated as alive; 0: never.
	PanicBelow uint8
	FailOpen   bool
}

// Decide returns the decision that follows before.
//
// An endpoint fails open if its policy allows that, none of its members with weight is alive, and
// each of them has a result. This ends when one is alive. Backups are not needed while other
// members are treated as alive for this reason. Otherwise backups take part when no other member is
// alive, or when the healthy share of the others falls below the threshold, until it is Margin
// above.
//
// Panic begins when the healthy share of the members that take part, including active backups,
// falls below its threshold even if all members without a result were alive. It ends when the share
// is Margin above the threshold. Backups are activated and deactivated by health during a panic,
// too.
func Decide(before Decision, t Tally, p Policy) Decision {
	var d Decision
	d.FailOpen = p.FailOpen && t.members > 0 && t.alive == 0 && (t.asked == t.members || before.FailOpen)
	switch {
	case t.backups == 0:
	case d.FailOpen || t.regular.up == 0:
		d.Backup = !d.FailOpen || t.regular.all == 0
	default:
		d.Backup = t.regular.below(t.regular.up, threshold(p.BackupBelow, before.Backup))
	}
	part := t.regular
	if d.Backup {
		part = part.plus(t.spare)
	}
	if before.Panic {
		d.Panic = part.below(part.up, threshold(p.PanicBelow, p.PanicBelow > 0))
	} else {
		d.Panic = part.below(part.may, uint64(p.PanicBelow))
	}
	return d
}

// threshold returns a share in percent, with Margin added to end a state that began.
func threshold(percent uint8, began bool) uint64 {
	if began {
		return min(uint64(percent)+Margin, 100)
	}
	return uint64(percent)
}

// Serves reports whether that many healthy members with weight are enough for an endpoint to be
// served. A minimum of 0 counts as 1.
func Serves(healthy int, minimum uint16) bool { return healthy >= max(int(minimum), 1) }
