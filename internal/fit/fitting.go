package fit

import (
	"maps"
	"slices"
)

// patientRefusals is the number of refusals after which claims are withheld in the fair order, more
// of them each time, whatever they declare to need.
const patientRefusals = 40

// Fate is the reason why a claim is withheld, and its state.
type Fate struct {
	// Table is the full table.
	Table string
	// Held: it keeps its previous use.
	Held bool
}

// Fitting finds a set of claims that tables accept. Tables may refuse claims that fit by the
// numbers, because they are fragmented, or removed entries are not free yet.
type Fitting struct {
	Claims   []Claim
	Capacity map[string]uint64
	// Same are claims that do not change: they need exactly their previous use.
	Same map[int]bool

	withheld map[int]Fate
	// forced are claims that are withheld although they fit by the numbers, with the full table.
	// They claim the use that they keep.
	forced map[int]string
	// short are tables that refused claims that should have fitted, with the use that they may
	// have; refusals counts the refusals.
	short    map[string]uint64
	refusals map[string]uint
	// tries counts the refusals of all tables, forcings the calls of force.
	tries, forcings uint
}

// NewFitting returns a fitting without claims.
func NewFitting() *Fitting {
	return &Fitting{Same: map[int]bool{}, forced: map[int]string{}, short: map[string]uint64{}, refusals: map[string]uint{}}
}

// Withheld returns the withheld claims by index. The map is not modified later.
func (f *Fitting) Withheld() map[int]Fate { return f.withheld }

// Choose selects the claims to withhold.
func (f *Fitting) Choose() {
	f.withheld = map[int]Fate{}
	for _, w := range Withhold(f.Claims, f.Capacity, f.short) {
		f.withhold(w.Index, w.Table)
	}
	for i, table := range f.forced {
		f.withhold(i, table)
	}
}

func (f *Fitting) withhold(i int, table string) {
	f.withheld[i] = Fate{Table: table, Held: len(f.Claims[i].Had) > 0}
}

// Refused selects again after a table was full. claim computes Claims and Capacity and is called
// once, the first time. named is called after that and returns the claim whose entries found no
// room; negative if unknown. Refused returns false when no claim is left to withhold. It
// terminates: after patientRefusals calls every call forces at least one claim, and a claim can be
// forced at most twice.
func (f *Fitting) Refused(table string, claim func(), named func() int) bool {
	f.tries++
	before := f.withheld
	if f.Claims == nil {
		claim()
		f.Choose()
	}
	for maps.Equal(before, f.withheld) && f.tries <= patientRefusals {
		used, less := Used(f.Claims, f.fitted(), table), uint64(1)<<min(f.refusals[table], 32)
		f.refusals[table]++
		f.short[table] = used - min(used, less)
		f.Choose()
		if less >= used {
			break
		}
	}
	return !maps.Equal(before, f.withheld) || f.force(table, named())
}

// force withholds claims when no new claim needs the full table, but some served ones need room in
// addition to their previous use. First they keep that, the named one before others. When no claim
// is left that changes, some are not served for a moment, because the way in which the tables were
// filled is unknown, and a change may need other entries of unchanged claims. Claims other than the
// named one follow the fair order, for twice as much of the table each time. False: no claim is
// left.
func (f *Fitting) force(table string, named int) bool {
	moves := func(i int) bool { _, already := f.withheld[i]; return !already && !f.Same[i] }
	served := func(i int) bool { w, already := f.withheld[i]; return !already || w.Held }
	if named >= 0 && moves(named) && f.tries <= patientRefusals {
		f.giveWay(named, table)
		return true
	}
	units := uint64(1) << min(f.forcings, 32)
	f.forcings++
	for _, of := range []func(int) bool{moves, served} {
		if chosen := f.fair(table, units, of); len(chosen) > 0 {
			for _, i := range chosen {
				f.giveWay(i, table)
			}
			return true
		}
	}
	return false
}

// giveWay makes a claim keep its previous use. A claim that had none, already keeps it or does not
// change is not served.
func (f *Fitting) giveWay(i int, table string) {
	c := &f.Claims[i]
	if _, already := f.withheld[i]; already || f.Same[i] {
		c.Had = nil
	}
	c.Need, f.forced[i] = c.Had, table
	f.withheld = maps.Clone(f.withheld)
	f.withhold(i, table)
}

// fair selects claims among those that may give way, in the order of Withhold, until they use so
// many units less of the table; all of them if none uses any.
func (f *Fitting) fair(table string, units uint64, may func(int) bool) (chosen []int) {
	claims := slices.Clone(f.Claims)
	for i := range claims {
		c := &claims[i]
		if _, already := f.withheld[i]; already {
			c.Need = c.Had
		}
		if c.Had, c.Served = c.Need, false; may(i) {
			c.Had, chosen = nil, append(chosen, i)
		}
	}
	used := Used(claims, nil, table)
	least := map[string]uint64{table: used - min(used, units)}
	if first := Withhold(claims, least, nil); len(first) > 0 {
		chosen = chosen[:0]
		for _, w := range first {
			chosen = append(chosen, w.Index)
		}
	}
	return chosen
}

// fitted returns the withheld claims in order.
func (f *Fitting) fitted() (out []Withheld) {
	for _, i := range slices.Sorted(maps.Keys(f.withheld)) {
		out = append(out, Withheld{Index: i, Table: f.withheld[i].Table})
	}
	return out
}
