package health

// BackupMargin is how many points of healthy share above the threshold send backups home: without it a share that
// hovers at the threshold would move flows for ever.
const BackupMargin = 5

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
	// weight and up are those of all members that are not backups, and of the alive ones among them.
	weight, up uint64
	// Numbers of members with weight: all, alive, asked, backups.
	members, alive, asked, backups int
}

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
	if s.Backup {
		t.backups += by
		return
	}
	// Unsigned sums wrap around and back.
	t.weight += uint64(by) * uint64(s.Weight)
	if s.Alive {
		t.up += uint64(by) * uint64(s.Weight)
	}
}

// Decision is what health means for a whole endpoint.
type Decision struct {
	// Backup: backups take part.
	Backup bool
	// FailOpen: all members are treated as alive, because none is.
	FailOpen bool
}

// Policy is what an endpoint asks for.
type Policy struct {
	// BackupBelow is the healthy share of weight among the members that are not backups, in percent, below which
	// backups take part.
	BackupBelow uint8
	FailOpen    bool
}

// Decide is the decision that follows before.
//
// An endpoint fails open when it asks for it, none of its members with weight is alive, and something is known of each
// of them; it stays so until one is alive. Members that are treated as alive need no backups. Otherwise backups take
// part when no other member is alive, or when their share falls below the threshold, until it is BackupMargin above.
func Decide(before Decision, t Tally, p Policy) Decision {
	var d Decision
	d.FailOpen = p.FailOpen && t.members > 0 && t.alive == 0 && (t.asked == t.members || before.FailOpen)
	switch {
	case t.backups == 0:
	case d.FailOpen || t.up == 0:
		d.Backup = !d.FailOpen || t.weight == 0
	default:
		threshold := uint64(p.BackupBelow)
		if before.Backup {
			threshold = min(threshold+BackupMargin, 100)
		}
		d.Backup = t.up*100 < threshold*t.weight
	}
	return d
}
