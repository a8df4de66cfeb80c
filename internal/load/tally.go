package load

// Tally knows how many things there are of which each beginning and end is counted, though now and then one is missed, and which are
// counted anew now and then by a look at all of them that takes a while. The zero Tally knows nothing.
type Tally struct {
	// missed is how many there are beyond those that began and did not end.
	missed int64
	known  bool
}

// None says that there is none while `began` began and `ended` ended. Both wrap around.
func (t *Tally) None(began, ended uint64) {
	t.missed, t.known = -int64(began-ended), true
}

// Counted takes in that a look found n. When it started, `began` and `ended` were the counts; when it was over, later and laterEnded. A thing
// that began or ended meanwhile may have been met or not: what is known stays as far as the look allows it.
func (t *Tally) Counted(n uint64, began, ended, later, laterEnded uint64) {
	// Had all that began been met and none of what ended missed, the look found most; and least the other way around.
	base := int64(n) - int64(began-ended)
	least, most := base-int64(later-began), base+int64(laterEnded-ended)
	if !t.known {
		t.missed, t.known = least+(most-least)/2, true
	}
	t.missed = min(max(t.missed, least), most)
}

// Now is how many there are; false: nobody looked yet.
func (t *Tally) Now(began, ended uint64) (uint64, bool) {
	return uint64(max(t.missed+int64(began-ended), 0)), t.known
}
