package health

// Margin is how many points of healthy share above the threshold send backups home, or end a panic: without it a share that
// hovers at the threshold would move flows for ever.
const Margin = 5

// Standing is what counts of a member of an endpoint.
type Standing struct {
	// Weight in the ring; members of weight 0 take no new flows and decide nothing.
	Weight uint16
	Backup bool
	Alive  bool
	// Asked: something is known of it, be it good or bad.
	Asked bool
}

// Tally is the sum over an endpoint's members. The zero value is that of no members.
type Tally struct {
	// regular are the members that are not backups, spare the backups.
	regular, spare weights
	// Numbers of members with weight: all, alive, asked, backups.
	members, alive, asked, backups int
}

// weights are sums of members' weights: of all, of the alive ones, and of those that are alive or were not asked.
type weights struct{ all, up, may uint64 }

func (w weights) plus(o weights) weights { return weights{w.all + o.all, w.up + o.up, w.may + o.may} }

// below tells whether a share of the weight is below so many percent.
func (w weights) below(part, percent uint64) bool { return part*100 < percent*w.all }

// Add counts a member in.
func (t *Tally) Add(s Standing) { t.count(s, 1) }

// Remove counts a member out again that was counted in with this standing.
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

// Decision is what health means for a whole endpoint.
type Decision struct {
	// Backup: backups take part.
	Backup bool
	// FailOpen: all members are treated as alive, because none is.
	FailOpen bool
	// Panic: all members are treated as alive, because too few are.
	Panic bool
}

// Open tells that all members are treated as alive.
func (d Decision) Open() bool { return d.FailOpen || d.Panic }

// Policy is what an endpoint asks for.
type Policy struct {
	// BackupBelow is the healthy share of weight among the members that are not backups, in percent, below which
	// backups take part.
	BackupBelow uint8
	// PanicBelow is the healthy share of weight among the members that take part, in percent, below which all are treated as
	// alive; 0: never.
	PanicBelow uint8
	FailOpen   bool
}

// Decide is the decision that follows before.
//
// An endpoint fails open when it asks for it, none of its members with weight is alive, and something is known of each
// of them; it stays so until one is alive. Members that are treated as alive for that need no backups. Otherwise backups take
// part when no other member is alive, or when their share falls below the threshold, until it is Margin above.
//
// It panics when the share of those that take part, with backups if they do, falls below its threshold whatever becomes of members
// of which nothing is known, until it is Margin above. Backups come and go by health in a panic, too.
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

// threshold is a share in percent, with the margin above it that ends what it began.
func threshold(percent uint8, began bool) uint64 {
	if began {
		return min(uint64(percent)+Margin, 100)
	}
	return uint64(percent)
}

// Serves tells whether so many healthy members with weight are enough for an endpoint to be served; a minimum of 0 counts as 1.
func Serves(healthy int, minimum uint16) bool { return healthy >= max(int(minimum), 1) }
