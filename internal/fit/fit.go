// Package fit selects the claims on tables of limited capacity that are withheld, so that all
// others fit. It is pure.
package fit

import (
	"cmp"
	"maps"
	"slices"
)

// Need is the use of a table by a claim.
type Need struct {
	Table string
	Units uint64
	// Of is nil if only this claim uses the units. Otherwise all claims with an equal value share
	// them; equal values must have equal units.
	Of any
}

// Claim is an object of a tenant that is served completely or not at all.
type Claim struct {
	Tenant string
	// Created orders claims by age, younger ones having larger numbers; Name orders those of one
	// age, and is unique.
	Created int64
	Name    string
	Need    []Need
	// Had is the use that remains when it is withheld; empty: it has none now.
	Had []Need
	// Served: it is served now, and would not be if withheld.
	Served bool
}

// Withheld is a withheld claim, and the full table for which it was selected.
type Withheld struct {
	Index int
	Table string
}

// Withhold returns the claims to withhold so that the others fit into tables of these capacities,
// in the order of claims. Tables without a capacity have room for all.
//
// Table by table, while one is full, the tenant with the highest use of it loses its youngest claim
// that needs more of the table than it had. All tenants have the same share, so this tenant is the
// one furthest above its share. Claims that are served now keep their place while any tenant has
// others to lose. Claims that fit in the end are restored, the last one withheld first.
//
// short has tables that refused claims at a lower fill, because removed entries are not free yet.
// No served claim is withheld for that.
func Withhold(claims []Claim, capacity, short map[string]uint64) []Withheld {
	l := newLedger(claims)
	l.shrink(capacity, true)
	limits := maps.Clone(capacity)
	for table, units := range short {
		if most, bounded := capacity[table]; !bounded || units < most {
			limits[table] = units
		}
	}
	l.shrink(limits, false)
	l.giveBack(limits)
	l.shrink(capacity, true) // in a single table claims may keep more than they need
	out := slices.Clone(l.order)
	slices.SortFunc(out, func(a, b Withheld) int { return cmp.Compare(a.Index, b.Index) })
	return out
}

// Used returns the units of a table that claims use when some are withheld.
func Used(claims []Claim, withheld []Withheld, table string) uint64 {
	l := newLedger(claims)
	for _, w := range withheld {
		l.move(w.Index, true)
	}
	return l.all.used[table]
}

// use is the use of tables by some claims.
type use struct {
	used map[string]uint64
	refs map[share]int
}

type share struct {
	table string
	of    any
}

func newUse() *use { return &use{map[string]uint64{}, map[share]int{}} }

func (u *use) add(needs []Need) {
	for _, n := range needs {
		if n.Of != nil {
			if u.refs[share{n.Table, n.Of}]++; u.refs[share{n.Table, n.Of}] > 1 {
				continue
			}
		}
		u.used[n.Table] += n.Units
	}
}

func (u *use) remove(needs []Need) {
	for _, n := range needs {
		if n.Of != nil {
			key := share{n.Table, n.Of}
			if u.refs[key]--; u.refs[key] > 0 {
				continue
			}
			delete(u.refs, key)
		}
		u.used[n.Table] -= n.Units
	}
}

// ledger tracks the use of each tenant, and the withheld claims.
type ledger struct {
	claims   []Claim
	all      *use
	tenants  map[string]*use
	withheld []bool
	order    []Withheld // the order in which they were withheld
}

func newLedger(claims []Claim) *ledger {
	l := &ledger{claims: claims, all: newUse(), tenants: map[string]*use{}, withheld: make([]bool, len(claims))}
	for _, c := range claims {
		if l.tenants[c.Tenant] == nil {
			l.tenants[c.Tenant] = newUse()
		}
		l.all.add(c.Need)
		l.tenants[c.Tenant].add(c.Need)
	}
	return l
}

// move withholds or restores a claim.
func (l *ledger) move(i int, withhold bool) {
	c := &l.claims[i]
	l.withheld[i] = withhold
	for _, u := range []*use{l.all, l.tenants[c.Tenant]} {
		if withhold {
			u.remove(c.Need)
			u.add(c.Had)
		} else {
			u.remove(c.Had)
			u.add(c.Need)
		}
	}
}

// grows returns true if a claim needs more of a table than it had.
func (c *Claim) grows(table string) bool {
	var need, had uint64
	for _, n := range c.Need {
		if n.Table == table {
			need += n.Units
		}
	}
	for _, n := range c.Had {
		if n.Table == table {
			had += n.Units
		}
	}
	return need > had
}

// shrink withholds claims until no table exceeds its limit, or no claim is left that would help.
// With served it also withholds served claims.
func (l *ledger) shrink(limits map[string]uint64, served bool) {
	tables := slices.Sorted(maps.Keys(limits))
	for again := true; again; {
		again = false
		for _, table := range tables {
			if l.all.used[table] <= limits[table] {
				continue
			}
			queues := l.candidates(table)
			for l.all.used[table] > limits[table] {
				q := l.next(queues[0], table)
				if q == nil && served {
					q = l.next(queues[1], table)
				}
				if q == nil {
					break
				}
				i := q.claims[len(q.claims)-1]
				q.claims = q.claims[:len(q.claims)-1]
				l.move(i, true)
				l.order = append(l.order, Withheld{i, table})
				again = true
			}
		}
	}
}

// queue holds the claims of a tenant that may be withheld, the youngest last.
type queue struct {
	tenant string
	claims []int
}

// candidates returns the claims that need more of a table than they had, by tenant: first those
// that are not served, then those that are.
func (l *ledger) candidates(table string) (out [2][]*queue) {
	of := [2]map[string]*queue{{}, {}}
	for i := range l.claims {
		c := &l.claims[i]
		if l.withheld[i] || !c.grows(table) {
			continue
		}
		class := 0
		if c.Served {
			class = 1
		}
		q := of[class][c.Tenant]
		if q == nil {
			q = &queue{tenant: c.Tenant}
			of[class][c.Tenant], out[class] = q, append(out[class], q)
		}
		q.claims = append(q.claims, i)
	}
	for _, queues := range out {
		for _, q := range queues {
			slices.SortFunc(q.claims, func(a, b int) int {
				x, y := &l.claims[a], &l.claims[b]
				return cmp.Or(cmp.Compare(x.Created, y.Created), cmp.Compare(x.Name, y.Name))
			})
		}
	}
	return out
}

// next returns the queue of the tenant with the highest use of a table, of equal ones the first by
// name; nil when all are empty.
func (l *ledger) next(queues []*queue, table string) (most *queue) {
	for _, q := range queues {
		if len(q.claims) == 0 {
			continue
		}
		if most == nil {
			most = q
			continue
		}
		a, b := l.tenants[q.tenant].used[table], l.tenants[most.tenant].used[table]
		if a > b || a == b && q.tenant < most.tenant {
			most = q
		}
	}
	return most
}

// giveBack restores claims that fit after all.
func (l *ledger) giveBack(limits map[string]uint64) {
	kept := l.order[:0:0]
	for _, w := range slices.Backward(l.order) {
		before := map[string]uint64{}
		for _, n := range l.claims[w.Index].Need {
			before[n.Table] = l.all.used[n.Table]
		}
		l.move(w.Index, false)
		for table, was := range before {
			limit, bounded := limits[table]
			if now := l.all.used[table]; bounded && now > was && now > limit {
				l.move(w.Index, true)
				kept = append(kept, w)
				break
			}
		}
	}
	l.order = kept
}
