package manager

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/fit"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// tableUse is the use and the capacity of a table in a node's last report.
type tableUse struct{ used, capacity uint64 }

// muxTables returns the tables of each connected mux.
func (r *reports) muxTables() map[string]map[string]tableUse {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]map[string]tableUse{}
	r.eachMuxLocked(func(name string, st *apiv1.NodeStatus) {
		if len(st.GetTables()) > 0 {
			out[name] = usesOf(st.GetTables())
		}
	})
	return out
}

// hostTables returns the tables of a connected host, or nil.
func (r *reports) hostTables(node string) map[string]tableUse {
	r.mu.Lock()
	st := r.heard[node].status
	r.mu.Unlock()
	if !st.GetConnected() || st.GetRole() != string(lb.RoleHost) {
		return nil
	}
	return usesOf(st.GetTables())
}

func usesOf(tables []*apiv1.TableStatus) map[string]tableUse {
	out := map[string]tableUse{}
	for _, t := range tables {
		out[t.GetName()] = tableUse{t.GetUsed(), t.GetCapacity()}
	}
	return out
}

// reportedTable is a table of muxes whose use is determined by the objects only in part. The needs
// of a write are compared with the free entries in the muxes' last reports.
type reportedTable struct {
	name, unit, field string
	// placed: only for services that are not on every mux, because the others are counted exactly
	// (muxTables).
	placed bool
	// switched: traffic determines the table's use, and a capacity of 0 excludes endpoints that
	// need it.
	switched bool
}

var reportedTables = []reportedTable{
	{name: "rings", unit: "ring slots", field: "endpoints"},
	{name: "backends", unit: "backends", field: "endpoints"},
	{name: "port_ranges", unit: "intervals of ports", field: "endpoints"},
	{name: "cookie_sets", unit: "sets of cookie keys", field: "endpoints"},
	{name: "source_lists", unit: "source lists", field: "sources"},
	{name: "sources", unit: "words of source lists", field: "sources"},
	{name: "nat_sessions", unit: "endpoints with path nat", field: "endpoints", switched: true},
	{name: "connections", unit: "endpoints with track", field: "endpoints", switched: true},
	{name: "endpoints", unit: "endpoints and VIPs", field: "endpoints", placed: true},
	{name: "members", unit: "members", field: "endpoints", placed: true},
	{name: "quic_endpoints", unit: "QUIC endpoints", field: "endpoints", placed: true},
}

// outerKey identifies a record of a backend, except for the MTU of its path.
type outerKey struct {
	outer netip.Addr
	encap string
	port  uint16 // only with path nat
}

// taking computes the needs of a service in tables of muxes.
type taking struct {
	policies map[string]*lb.Policy
	networks lb.Networks
	// code returns the ring size of an endpoint.
	code func(key lb.EndpointKey, ep *lb.Endpoint) uint8
}

// needs returns the needs of a service. Backends and lists that several services share count once
// for all of them.
func (t *taking) needs(s *lb.Service) (out []fit.Need) {
	units := map[string]uint64{}
	shared := map[fit.Need]bool{}
	share := func(table string, n uint64, of any) {
		if need := (fit.Need{Table: table, Units: n, Of: of}); !shared[need] {
			shared[need] = true
			out = append(out, need)
		}
	}
	ranges := map[netip.Addr]uint64{}
	plan.EachEndpoint(s, func(key lb.EndpointKey, ep *lb.Endpoint) {
		members, choosable, backups := uint64(0), false, false
		encap := cmp.Or(ep.Encap, t.networks.Encap(key.VIP))
		for i := range ep.Backends {
			b := &ep.Backends[i]
			dip, ok := b.DIP(key.VIP)
			if !ok {
				continue
			}
			members++
			choosable, backups = choosable || b.Weight > 0 && !b.Drain, backups || b.Backup
			if ep.Translated() {
				share("backends", 1, outerKey{dip, "", b.Port})
			} else {
				share("backends", 1, outerKey{lb.Outer(dip, b.Host), encap, 0})
			}
		}
		units["endpoints"]++
		units["members"] += members
		if choosable {
			units["rings"] += uint64(1) << t.code(key, ep)
			if backups {
				units["rings"] += uint64(1) << t.code(key, ep)
			}
		}
		if ep.QUIC != nil {
			units["quic_endpoints"]++
		}
		if ep.Translated() {
			units["nat_sessions"]++
		}
		if ep.Track {
			units["connections"]++
		}
		if ep.Cookie.Form != "" {
			share("cookie_sets", 1, key.VIP.String()+" "+ep.Cookie.Form)
		}
		if key.PortEnd != 0 && key.Protocol != lb.AnyProtocol {
			ranges[key.VIP]++
		}
	})
	units["endpoints"] += uint64(len(s.VIPs))
	for _, n := range ranges {
		units["port_ranges"] += max(4, ceilPower(n))
	}
	e := lb.Effective(s, t.policies)
	if n := len(e.Sources.Allow) + len(e.Sources.Deny); n > 0 {
		of := "service " + s.Name
		if e.SourcesOf != "" {
			of = "policy " + e.SourcesOf
		}
		share("source_lists", 1, of)
		share("sources", sourceWords(e.Sources), of)
	}
	for table, n := range units {
		out = append(out, fit.Need{Table: table, Units: n})
	}
	return out
}

// listNeeds returns the needs of a policy's list.
func listNeeds(p *lb.Policy) []fit.Need {
	if p.Sources == nil {
		return nil
	}
	return []fit.Need{{Table: "source_lists", Units: 1, Of: "policy " + p.Name}, {Table: "sources", Units: sourceWords(p.Sources), Of: "policy " + p.Name}}
}

// sourceWords returns the number of words of a list in which no two prefixes touch or overlap: each
// prefix has two boundaries, two boundaries of IPv4 need one word, and one of IPv6 needs two.
func sourceWords(s *lb.Sources) uint64 {
	var words uint64
	for _, list := range [][]netip.Prefix{s.Allow, s.Deny} {
		for _, p := range list {
			if words++; !p.Addr().Is4() {
				words += 3
			}
		}
	}
	return max(64, ceilPower(words))
}

// ceilPower returns the smallest power of two that is at least n.
func ceilPower(n uint64) uint64 {
	size := uint64(1)
	for size < n {
		size *= 2
	}
	return size
}

// growing holds the needs of an edited service, or of an edited policy's list that services use,
// and those before.
type growing struct {
	name     string // as lb.Ref
	replicas int
	needs    []fit.Need
	before   []fit.Need
}

// more returns the growth in a table. known holds shared items, with their units, that others have
// already.
func (g *growing) more(table string, known map[fit.Need]bool) uint64 {
	var now, was uint64
	had := map[any]uint64{}
	for _, n := range g.before {
		if n.Table == table && n.Of == nil {
			was += n.Units
		} else if n.Table == table {
			had[n.Of] = n.Units
		}
	}
	for _, n := range g.needs {
		switch {
		case n.Table != table:
		case n.Of == nil:
			now += n.Units
		case !known[n]:
			now += n.Units - min(n.Units, had[n.Of])
		}
	}
	return now - min(now, was)
}

// crowdedTables returns violations for tables of muxes without room for the write, by their last
// reports. A service with placement fits if as many muxes as it requests have room.
func (w *write) crowdedTables(c conditions) (faults []lb.Violation) {
	if c.muxes == nil {
		return nil
	}
	muxes := c.muxes()
	if len(muxes) == 0 {
		return nil
	}
	v := w.base.v
	v.mu.RLock()
	defer v.mu.RUnlock()
	all, t := w.growingLocked(c)
	if len(all) == 0 {
		return nil
	}
	nodes := slices.Sorted(maps.Keys(muxes))
	var known map[fit.Need]bool
	for _, table := range reportedTables {
		fault := w.crowdedTable(table, nodes, muxes, all, nil)
		if fault != nil && !table.switched && !table.placed {
			// Others may have it already. This check costs a scan of all services.
			if known == nil {
				known = w.sharedLocked(t)
			}
			fault = w.crowdedTable(table, nodes, muxes, all, known)
		}
		if fault != nil {
			faults = append(faults, *fault)
		}
	}
	return faults
}

// growingLocked returns the edited services and policies with their needs after and before the
// write.
func (w *write) growingLocked(c conditions) (all []growing, t *taking) {
	v := w.base.v
	t = &taking{policies: v.state.Policies, networks: v.networks, code: func(key lb.EndpointKey, ep *lb.Endpoint) uint8 {
		if st, known := v.state.Endpoints[key]; known && st.RingCode > 0 {
			return st.RingCode
		}
		var weights []uint16
		for _, b := range plan.WantedMembers(ep, key.VIP) {
			if b.Weight > 0 {
				weights = append(weights, b.Weight)
			}
		}
		return c.size(weights, 0)
	}}
	policies := maps.Clone(v.state.Policies)
	for r, o := range w.edited {
		if p, ok := o.(*lb.Policy); ok {
			policies[r.name] = p
		}
	}
	after := &taking{policies: policies, networks: v.networks, code: t.code}
	for r, o := range w.edited {
		if p, ok := o.(*lb.Policy); ok && len(v.items.takers[p.Name]) > 0 {
			g := growing{name: lb.Ref(r.kind, r.name), needs: listNeeds(p)}
			if old := v.records[r]; old != nil {
				g.before = listNeeds(old.obj.(*lb.Policy))
			}
			all = append(all, g)
		}
		svc, ok := o.(*lb.Service)
		if !ok {
			continue
		}
		g := growing{name: lb.Ref(r.kind, r.name), replicas: int(lb.Effective(svc, policies).Placement.Replicas), needs: after.needs(svc)}
		if old := v.records[r]; old != nil {
			g.before = t.needs(old.obj.(*lb.Service))
		}
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b growing) int { return cmp.Compare(a.name, b.name) })
	return all, t
}

// sharedLocked returns the shared items of all services that the write does not edit.
func (w *write) sharedLocked(t *taking) map[fit.Need]bool {
	out := map[fit.Need]bool{}
	for name, svc := range w.base.v.state.Services {
		if _, edited := w.edited[ref{lb.KindService, name}]; edited {
			continue
		}
		for _, n := range t.needs(svc) {
			if n.Of != nil {
				out[n] = true
			}
		}
	}
	return out
}

// crowdedTable returns the violation if a table has no room, or nil.
func (w *write) crowdedTable(table reportedTable, nodes []string, muxes map[string]map[string]tableUse, all []growing, known map[fit.Need]bool) *lb.Violation {
	free := map[string]uint64{}
	for _, node := range nodes {
		use, reported := muxes[node][table.name]
		if !reported || table.switched && use.capacity > 0 {
			continue
		}
		free[node] = use.capacity - min(use.capacity, use.used)
		if table.switched {
			free[node] = 0
		}
	}
	refuse := func(g *growing, more uint64, node string) *lb.Violation {
		use := muxes[node][table.name]
		in := fmt.Sprintf("%d are in use", use.used)
		if table.switched {
			in = "it keeps none"
		}
		return &lb.Violation{
			Field: g.name + ": " + table.field, Value: fmt.Sprintf("%d more %s", more, table.unit),
			Allowed: fmt.Sprintf("must be at most %d more: table %s of %s has room for %d, and %s", free[node], table.name, lb.Ref(lb.KindNode, node), use.capacity, in),
		}
	}
	var everywhere uint64
	for i := range all {
		g := &all[i]
		more := g.more(table.name, known)
		if more == 0 || g.replicas == 0 && table.placed {
			continue
		}
		var full []string
		fits := 0
		for _, node := range nodes {
			if room, reported := free[node]; reported && room < everywhere+more {
				full = append(full, node)
			} else {
				fits++
			}
		}
		if len(full) > 0 && (g.replicas == 0 || fits < min(g.replicas, len(nodes))) {
			return refuse(g, everywhere+more, full[0])
		}
		if g.replicas == 0 {
			everywhere += more
		}
	}
	return nil
}
