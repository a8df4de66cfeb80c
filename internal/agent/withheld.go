package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// WithheldVIP is a VIP of the plan for which the node's tables have no room.
type WithheldVIP struct {
	Service, Tenant string
	// Table is the full one, by its name in the status.
	Table string
	// Held: the VIP is served as before the change that does not fit, else not at all.
	Held bool
}

const (
	// namedVIPs is how many VIPs of a tenant a message names.
	namedVIPs = 4
	// mostWithheld bounds how many VIPs a status lists.
	mostWithheld = 1024
)

// WithheldLines returns messages about withheld VIPs, one for each combination of table, tenant and
// held.
func WithheldLines(withheld map[lb.EndpointKey]WithheldVIP) (lines []string) {
	type group struct {
		table, tenant string
		held          bool
	}
	of := map[group][]string{}
	for _, vip := range slices.SortedFunc(maps.Keys(withheld), plan.CompareKeys) {
		w := withheld[vip]
		g := group{w.Table, w.Tenant, w.Held}
		of[g] = append(of[g], vip.VIP.String())
	}
	groups := slices.SortedFunc(maps.Keys(of), func(a, b group) int {
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.tenant, b.tenant), cmp.Compare(fmt.Sprint(a.held), fmt.Sprint(b.held)))
	})
	for _, g := range groups {
		vips, more := of[g], ""
		if n := len(vips) - namedVIPs; n > 0 {
			vips, more = vips[:namedVIPs], fmt.Sprintf(" and %d more", n)
		}
		fate := "not served"
		if g.held {
			fate = "served as before their last change"
		}
		lines = append(lines, fmt.Sprintf("table %s is full: VIPs %s%s of %s are %s", g.table, strings.Join(vips, ", "), more, lb.Ref(lb.KindTenant, g.tenant), fate))
	}
	return lines
}

// WithheldStatus lists withheld VIPs, sorted, at most mostWithheld.
func WithheldStatus(withheld map[lb.EndpointKey]WithheldVIP) (out []*apiv1.WithheldStatus) {
	for _, vip := range slices.SortedFunc(maps.Keys(withheld), plan.CompareKeys) {
		if len(out) == mostWithheld {
			break
		}
		w := withheld[vip]
		out = append(out, &apiv1.WithheldStatus{Vip: vip.VIP.String(), Service: w.Service, Tenant: w.Tenant, Table: w.Table, Held: w.Held})
	}
	return out
}
