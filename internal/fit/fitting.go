package fit

import (
	"maps"
	"slices"
)

// patientRefusals: after so many refusals claims give way by the fair order, more of them each time, whatever they say that they need.
const patientRefusals = 40

// Fate is why a claim is withheld, and what becomes of it.
type Fate struct {
	// Table is the full one.
	Table string
	// Held: it goes on with what it had.
	Held bool
}

// Fitting leads to a choice of claims that tables take. Tables may refuse what fits by the claims: they are not tidy, or what left them is not
// free yet.
type Fitting struct {
	Claims   []Claim
	Capacity map[string]uint64
	// Same are claims that do not change: they need what they had.
	Same map[int]bool

	withheld map[int]Fate
	// forced are claims that are withheld although by the sums they fit, with the full table. They claim what they keep.
	forced map[int]string
	// short are tables that refused what should have fitted, with how much they may take, and how often they did.
	short    map[string]uint64
	refusals map[string]uint
	// tries is how often the tables refused, forcings how often force was called.
	tries, forcings uint
}

// NewFitting makes a fitting of no claims yet.
func NewFitting() *Fitting {
	return &Fitting{Same: map[int]bool{}, forced: map[int]string{}, short: map[string]uint64{}, refusals: map[string]uint{}}
}

// Withheld are the claims that are withheld, by index. It is not modified.
func (f *Fitting) Withheld() map[int]Fate { return f.withheld }

// Choose decides which claims are withheld.
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

// Refused chooses again after a table was full. claim computes Claims and Capacity and is called once, the first time. named is the claim whose
// entries found no room, looked up after that; negative where none was named. It returns false when nothing is left to withhold. It ends: after
// patientRefusals every call makes at least one claim give way, and a claim gives way twice at most.
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

// force makes claims give way when none that comes needs the full table, but some that are served need room next to what they have. First they
// go on with that, the named one before others. When none is left that changes, some are not served for a moment: how the tables got
// what they have is not known, and a change may need other entries of claims that are the same. Others than the named one follow the fair
// order, for twice as much of the table each time. False: no claim is left.
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

// giveWay makes a claim keep what it had; one that had nothing, keeps it already or is the same is not served.
func (f *Fitting) giveWay(i int, table string) {
	c := &f.Claims[i]
	if _, already := f.withheld[i]; already || f.Same[i] {
		c.Had = nil
	}
	c.Need, f.forced[i] = c.Had, table
	f.withheld = maps.Clone(f.withheld)
	f.withhold(i, table)
}

// fair chooses claims of those that may give way, by the order in which claims are withheld, until they
// take so many units less of the table; all of them if none takes any.
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

// fitted are the claims that are withheld, in their order.
func (f *Fitting) fitted() (out []Withheld) {
	for _, i := range slices.Sorted(maps.Keys(f.withheld)) {
		out = append(out, Withheld{Index: i, Table: f.withheld[i].Table})
	}
	return out
}
