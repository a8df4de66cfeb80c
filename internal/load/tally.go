package load

// Tally tracks the number of existing items whose beginnings and ends are counted, with occasional
// misses. Scans of all items, which take a while, correct it. The zero Tally has no count.
type Tally struct {
	// missed is the number of items in addition to those that began and did not end.
	missed int64
	known  bool
}

// None records that there is no item while `began` began and `ended` ended. Both counters wrap.
func (t *Tally) None(began, ended uint64) {
	t.missed, t.known = -int64(began-ended), true
}

// Counted records that a scan found n items. `began` and `ended` are the counters at its start;
// later and laterEnded those at its end. The scan may or may not have found items that began or
// ended meanwhile, so the tally only changes as far as the result requires.
func (t *Tally) Counted(n uint64, began, ended, later, laterEnded uint64) {
	// If the scan found all items that began and ended meanwhile, missed is least; if it found none
	// of them, most.
	base := int64(n) - int64(began-ended)
	least, most := base-int64(later-began), base+int64(laterEnded-ended)
	if !t.known {
		t.missed, t.known = least+(most-least)/2, true
	}
	t.missed = min(max(t.missed, least), most)
}

// Now returns the number of items; false: there was no scan yet.
func (t *Tally) Now(began, ended uint64) (uint64, bool) {
	return uint64(max(t.missed+int64(began-ended), 0)), t.known
}
