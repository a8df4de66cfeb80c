package fit

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// total returns the claims' use of a table, summed anew.
func total(claims []Claim, withheld map[int]bool, table, tenant string) (n uint64) {
	seen := map[any]bool{}
	for i, c := range claims {
		if tenant != "" && c.Tenant != tenant {
			continue
		}
		needs := c.Need
		if withheld[i] {
			needs = c.Had
		}
		for _, need := range needs {
			if need.Table != table || need.Of != nil && seen[need.Of] {
				continue
			}
			if need.Of != nil {
				seen[need.Of] = true
			}
			n += need.Units
		}
	}
	return n
}

func units(needs []Need, table string) (n uint64) {
	for _, need := range needs {
		if need.Table == table {
			n += need.Units
		}
	}
	return n
}

// naive implements the definition of Withhold, summing everything anew.
func naive(claims []Claim, capacity, short map[string]uint64, tables []string) (out []int) {
	withheld := map[int]bool{}
	var order []int
	shrink := func(limits map[string]uint64, served bool) {
		for again := true; again; {
			again = false
			for _, table := range tables {
				limit, bounded := limits[table]
				for bounded && total(claims, withheld, table, "") > limit {
					best := -1
					better := func(i int) bool {
						if best < 0 {
							return true
						}
						a, b := claims[i], claims[best]
						x, y := total(claims, withheld, table, a.Tenant), total(claims, withheld, table, b.Tenant)
						switch {
						case a.Served != b.Served:
							return b.Served
						case a.Tenant != b.Tenant:
							return x > y || x == y && a.Tenant < b.Tenant
						case a.Created != b.Created:
							return a.Created > b.Created
						}
						return a.Name > b.Name
					}
					for i, c := range claims {
						if !withheld[i] && (served || !c.Served) && units(c.Need, table) > units(c.Had, table) && better(i) {
							best = i
						}
					}
					if best < 0 {
						break
					}
					withheld[best], again = true, true
					order = append(order, best)
				}
			}
		}
	}
	shrink(capacity, true)
	limits := map[string]uint64{}
	for t, n := range capacity {
		limits[t] = n
	}
	for t, n := range short {
		if have, ok := limits[t]; !ok || n < have {
			limits[t] = n
		}
	}
	shrink(limits, false)
	for _, i := range slices.Backward(order) {
		before := map[string]uint64{}
		for _, t := range tables {
			before[t] = total(claims, withheld, t, "")
		}
		withheld[i] = false
		for _, t := range tables {
			limit, bounded := limits[t]
			if now := total(claims, withheld, t, ""); bounded && now > before[t] && now > limit {
				withheld[i] = true
			}
		}
	}
	shrink(capacity, true)
	for i := range claims {
		if withheld[i] {
			out = append(out, i)
		}
	}
	return out
}

var testTables = []string{"a", "b", "c"}

func drawNeeds(t *rapid.T, name string) (out []Need) {
	seen := map[any]bool{}
	for range rapid.IntRange(0, 4).Draw(t, name) {
		n := Need{Table: rapid.SampledFrom(testTables).Draw(t, "table"), Units: rapid.Uint64Range(1, 5).Draw(t, "units")}
		if rapid.Bool().Draw(t, "shared") {
			of := rapid.IntRange(0, 5).Draw(t, "of")
			n.Of, n.Units = of, uint64(of%3+1)
			if key := fmt.Sprint(n.Table, of); seen[key] {
				continue
			} else {
				seen[key] = true
			}
		}
		out = append(out, n)
	}
	return out
}

func drawClaims(t *rapid.T) (claims []Claim) {
	for i := range rapid.IntRange(0, 14).Draw(t, "claims") {
		c := Claim{
			Tenant: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "tenant"), Created: rapid.Int64Range(0, 4).Draw(t, "created"),
			Name: fmt.Sprintf("%02d", i), Need: drawNeeds(t, "need"),
		}
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			c.Had = drawNeeds(t, "had")
		case 1:
			c.Had = c.Need
		case 2:
			c.Served = true
		}
		claims = append(claims, c)
	}
	return claims
}

func drawLimits(t *rapid.T, name string) map[string]uint64 {
	out := map[string]uint64{}
	for _, table := range testTables {
		if rapid.IntRange(0, 3).Draw(t, name) > 0 {
			out[table] = rapid.Uint64Range(0, 30).Draw(t, table)
		}
	}
	return out
}

// TestWithholdIsTheNaiveChoice compares with sums made anew at every step, and checks the
// properties of the result.
func TestWithholdIsTheNaiveChoice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		claims, capacity, short := drawClaims(t), drawLimits(t, "capacity"), drawLimits(t, "short")
		got := Withhold(claims, capacity, short)
		var indices []int
		withheld := map[int]bool{}
		for _, w := range got {
			indices, withheld[w.Index] = append(indices, w.Index), true
		}
		if want := naive(claims, capacity, short, testTables); !slices.Equal(indices, want) {
			t.Fatalf("withheld %v, want %v", indices, want)
		}
		for _, table := range testTables {
			n := total(claims, withheld, table, "")
			if n != Used(claims, got, table) {
				t.Fatalf("%s: Used says %d, there are %d", table, Used(claims, got, table), n)
			}
			limit, bounded := capacity[table]
			if !bounded || n <= limit {
				continue
			}
			for i, c := range claims {
				if withheld[i] || units(c.Need, table) <= units(c.Had, table) {
					continue
				}
				withheld[i] = true
				if total(claims, withheld, table, "") < n {
					t.Fatalf("%s: %d of %d in use, and claim %d is not withheld", table, n, limit, i)
				}
				delete(withheld, i)
			}
		}
		for i := range withheld {
			if len(claims[i].Need) == 0 || reflect.DeepEqual(claims[i].Need, claims[i].Had) {
				t.Fatalf("claim %d is withheld and gives nothing", i)
			}
		}
	})
}

// TestWithholdDependsOnClaimsAlone: the result does not depend on the order of claims.
func TestWithholdDependsOnClaimsAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		claims, capacity := drawClaims(t), drawLimits(t, "capacity")
		names := func(claims []Claim) (out []string) {
			for _, w := range Withhold(claims, capacity, nil) {
				out = append(out, claims[w.Index].Name)
			}
			slices.Sort(out)
			return out
		}
		want := names(claims)
		shuffled := slices.Clone(claims)
		rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)).Shuffle(len(shuffled), func(i, j int) {
			shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
		})
		if got := names(shuffled); !slices.Equal(got, want) {
			t.Fatalf("withheld %v, in another order %v", want, got)
		}
	})
}

// TestTenantOverItsShareGivesUp: the tenant with the highest use loses its youngest claims first,
// and no served ones.
func TestTenantOverItsShareGivesUp(t *testing.T) {
	claim := func(tenant string, created int64, name string, n uint64, served bool) Claim {
		c := Claim{Tenant: tenant, Created: created, Name: name, Need: []Need{{Table: "quic", Units: n}}}
		if served {
			c.Had = c.Need
		}
		return c
	}
	claims := []Claim{
		claim("evil", 1, "evil/old", 2, true), claim("evil", 7, "evil/a", 3, false), claim("evil", 8, "evil/b", 3, false),
		claim("good", 2, "good/old", 3, true), claim("good", 9, "good/new", 1, false),
	}
	for room, want := range map[uint64][]string{
		12: nil, 11: {"evil/b"}, 9: {"evil/b"}, 8: {"evil/a", "evil/b"}, 6: {"evil/a", "evil/b"},
		5: {"evil/a", "evil/b", "good/new"}, 0: {"evil/a", "evil/b", "good/new"},
	} {
		var got []string
		for _, w := range Withhold(claims, map[string]uint64{"quic": room}, nil) {
			got = append(got, claims[w.Index].Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("room %d: withheld %v, want %v", room, got, want)
		}
	}
}

// TestMany measures nothing; it would not end if the algorithm were quadratic.
func TestMany(t *testing.T) {
	var claims []Claim
	for i := range 60000 {
		claims = append(claims, Claim{
			Tenant: fmt.Sprint(i % 50), Created: int64(i), Name: fmt.Sprintf("%06d", i), Need: []Need{{Table: "a", Units: 2}, {Table: "b", Units: 1, Of: i / 2}},
		})
	}
	if got := len(Withhold(claims, map[string]uint64{"a": 60000, "b": 1000}, nil)); got != 58000 {
		t.Errorf("%d are withheld, want 58000", got)
	}
}
