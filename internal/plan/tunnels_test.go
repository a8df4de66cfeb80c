package plan_test

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// TestTunnelsAgree: for any sequence of added, changed and removed Networks, and any order in which
// nodes apply their plans, every host accepts the sources that any mux uses.
func TestTunnelsAgree(t *testing.T) {
	prefix := func(i int) []netip.Prefix {
		return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, byte(i), 0}), 24)}
	}
	nodes := map[string]*lb.Node{}
	for i, name := range []string{"m0", "m1", "m2", "h0", "h1", "h2"} {
		role := lb.RoleMux
		if name[0] == 'h' {
			role = lb.RoleHost
		}
		nodes[name] = &lb.Node{Name: name, Role: role, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i % 3), 0, byte(i + 1)})}}
	}
	names := slices.Sorted(maps.Keys(nodes))
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		state := &plan.State{Networks: map[string]*lb.Network{}, Nodes: nodes}
		has, at := map[string][]netip.Prefix{}, map[string]int{}
		revision, began := 1, map[string]int{}
		applyPlan := func(name string) {
			p := plan.Plan{Node: *nodes[name]}
			state.Surround(&p)
			has[name], at[name] = p.TunnelSources, revision
		}
		// edit creates, changes or deletes Network number i.
		edit := func(is map[string]*lb.Network, i int) {
			name := fmt.Sprintf("n%d", i)
			if is[name] != nil && len(is) > 1 && rapid.Bool().Draw(t, "delete") {
				delete(is, name)
				return
			}
			n := &lb.Network{Name: name, MTU: 1500, TunnelSources: prefix(4*i + rapid.IntRange(0, 3).Draw(t, "prefix"))}
			if i < 3 { // the last one has no underlay, so nodes may be anywhere in it
				n.Underlay = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16)}
			}
			is[name] = n
		}
		write := func(edits int) {
			is := maps.Clone(state.Networks)
			for range edits {
				edit(is, rapid.IntRange(0, 3).Draw(t, "network"))
			}
			revision++
			next := plan.NextTunnels(state.AllNetworks(), state.Tunnels, lb.SortNetworks(slices.Collect(maps.Values(is))), now)
			for name, c := range next {
				old := state.Networks[name]
				if before, had := state.Tunnels[name]; !had || old == nil || !slices.Equal(old.TunnelSources, is[name].TunnelSources) || !reflect.DeepEqual(before, c) {
					began[name] = revision
				}
			}
			state.Networks, state.Tunnels = is, next
		}
		write(1)
		for _, name := range names {
			applyPlan(name)
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				write(rapid.IntRange(1, 2).Draw(t, "edits"))
			case 1:
				now = now.Add(plan.TunnelsRestTime / 2)
				for _, name := range slices.Sorted(maps.Keys(state.Tunnels)) {
					c := state.Tunnels[name]
					acked := !slices.ContainsFunc(names, func(node string) bool { return nodes[node].Role == c.Role() && at[node] < began[name] })
					next, over, ends := c.Step(now, acked, state.Networks[name].TunnelSources)
					if !over {
						continue
					}
					revision++
					began[name] = revision
					if delete(state.Tunnels, name); !ends {
						state.Tunnels[name] = next
					}
				}
			default:
				applyPlan(rapid.SampledFrom(names).Draw(t, "node"))
			}
			for _, host := range names[:3] {
				for _, mux := range names[3:] {
					if len(has[mux]) != 1 || !slices.Contains(has[host], has[mux][0]) {
						t.Fatalf("%s uses %v, %s accepts %v", mux, has[mux], host, has[host])
					}
				}
			}
		}
	})
}

// TestNewNetworksEnd: the muxes of a new Network get its sources once all hosts accept them, and
// the sources of a deleted one are removed in the end.
func TestNewNetworksEnd(t *testing.T) {
	now := time.Unix(1000, 0)
	a := &lb.Network{Name: "a", TunnelSources: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}}
	b := &lb.Network{Name: "b", TunnelSources: []netip.Prefix{netip.MustParsePrefix("100.65.0.0/16")}}
	if first := plan.NextTunnels(nil, nil, lb.Networks{a, b}, now); len(first) > 0 {
		t.Errorf("the first Networks: %+v", first)
	}
	came := plan.NextTunnels(lb.Networks{a}, nil, lb.Networks{a, b}, now)["b"]
	if !slices.Equal(came.Muxes, a.TunnelSources) || came.Phase != plan.TunnelsSpread {
		t.Fatalf("a new Network: %+v", came)
	}
	if next, over, _ := came.Step(now, true, b.TunnelSources); !over || !slices.Equal(next.Muxes, b.TunnelSources) {
		t.Errorf("hosts accept the new Network's: %+v", next)
	}
	went := plan.NextTunnels(lb.Networks{a, b}, nil, lb.Networks{a}, now)["a"]
	if !slices.Equal(went.Accepted(a.TunnelSources), slices.Concat(a.TunnelSources, b.TunnelSources)) || !slices.Equal(went.Muxes, a.TunnelSources) || went.Phase != plan.TunnelsSwitch {
		t.Errorf("a deleted Network: %+v", went)
	}
}

// TestTunnelsEnd: a change passes through its phases and ends with only the wanted sources.
func TestTunnelsEnd(t *testing.T) {
	old, wanted := []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("100.65.0.0/16")}
	now := time.Unix(1000, 0)
	c := plan.ChangeTunnels(nil, old, now)
	for i, step := range []struct {
		after        time.Duration
		acked        bool
		phase        plan.TunnelPhase
		muxes, hosts []netip.Prefix
	}{
		{time.Hour, false, plan.TunnelsSpread, old, slices.Concat(wanted, old)},
		{0, true, plan.TunnelsSwitch, wanted, slices.Concat(wanted, old)},
		{time.Hour, false, plan.TunnelsSwitch, wanted, slices.Concat(wanted, old)},
		{0, true, plan.TunnelsRest, wanted, slices.Concat(wanted, old)},
		{plan.TunnelsRestTime - 1, true, plan.TunnelsRest, wanted, slices.Concat(wanted, old)},
	} {
		now = now.Add(step.after)
		next, _, ends := c.Step(now, step.acked, wanted)
		c = next
		if ends || c.Phase != step.phase || !slices.Equal(c.Muxes, step.muxes) || !slices.Equal(c.Accepted(wanted), step.hosts) {
			t.Fatalf("step %d: %+v, ends %v", i, c, ends)
		}
	}
	if _, over, ends := c.Step(now.Add(1), false, wanted); !over || !ends {
		t.Error("the change does not end")
	}
}
