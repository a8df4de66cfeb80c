package manager_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// TestTunnelSourcesChangeInPhases: hosts accept new tunnelSources in addition, then muxes use them,
// then hosts accept only them. A node that does not apply its plan delays the phase, also across a
// change of leader.
func TestTunnelSourcesChangeInPhases(t *testing.T) {
	r := newRig(t, store.NewMemory())
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, s := range texts {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	old := prefixes(lb.DefaultTunnelSourcesV4, lb.DefaultTunnelSourcesV6)
	first, second := prefixes("100.65.0.0/16", "fd53:6875:6e75::/64"), prefixes("100.66.0.0/16", "fd53:6875:6e76::/64")
	sources := func(want ...[]netip.Prefix) func(plan.Plan) bool {
		return func(p plan.Plan) bool { return slices.Equal(p.TunnelSources, slices.Concat(want...)) }
	}
	change := func(to []netip.Prefix) {
		n := network()
		n.TunnelSources = to
		r.apply(n)
	}
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	mux, host := r.join("mux1", "mux"), r.join("host1", "host")
	mux.until("the sources", sources(old))
	host.until("the sources", sources(old))

	host.fail(errors.New("no room"))
	change(first)
	limited := web(1)
	limited.Limits = &lb.Limits{Packets: 1000, Ping: 1000}
	r.apply(limited)
	limits := func(n uint64) func(plan.Plan) bool {
		return func(p plan.Plan) bool { return len(p.Services) == 1 && uint64(p.Services[0].Limits.Packets) == n }
	}
	if p := mux.until("a later change", limits(1000)); !sources(old)(p) {
		t.Fatalf("the mux uses %v before the host accepts them", p.TunnelSources)
	}
	r.stop()
	r.start()
	limited.Limits = &lb.Limits{Packets: 2000, Ping: 1000}
	r.apply(limited)
	if p := mux.until("a change by the next leader", limits(2000)); !sources(old)(p) {
		t.Fatalf("after a change of leader the mux uses %v", p.TunnelSources)
	}
	// Another change while this one is in progress: muxes never used the sources in between.
	change(second)
	mux.fail(errors.New("no room"))
	host.fail(nil)
	host.until("both", sources(second, old))
	mux.fail(nil)
	mux.until("the new ones", sources(second))
	host.until("the new ones alone", sources(second))
}

// TestNetworksComeAndGoInPhases: muxes in a new Network use the sources of another one until all
// hosts accept theirs. Hosts accept the sources of a deleted Network until no mux uses them.
func TestNetworksComeAndGoInPhases(t *testing.T) {
	r := newRig(t, store.NewMemory())
	main, next := network(), network()
	main.Underlay = nil // nodes may be anywhere
	old := main.TunnelSources
	next.Name, next.VIPs = "next", []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	next.Underlay = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}
	next.TunnelSources = []netip.Prefix{netip.MustParsePrefix("100.65.0.0/16"), netip.MustParsePrefix("fd53:6875:6e75::/64")}
	sources := func(want ...[]netip.Prefix) func(plan.Plan) bool {
		return func(p plan.Plan) bool { return slices.Equal(p.TunnelSources, slices.Concat(want...)) }
	}
	there := muxNode(1)
	there.Addresses = []netip.Addr{netip.MustParseAddr("172.16.0.1")}
	r.apply(main, hostNode(1), there, web(1))
	mux, host := r.join("mux1", "mux"), r.join("host1", "host")
	mux.until("the sources of the only Network", sources(old))
	host.until("the sources", sources(old))

	host.fail(errors.New("no room"))
	r.apply(next)
	limited := web(1)
	limited.Limits = &lb.Limits{Packets: 1000, Ping: 1000}
	r.apply(limited)
	if p := mux.until("a later change", func(p plan.Plan) bool { return len(p.Services) == 1 && p.Services[0].Limits.Packets == 1000 }); !sources(old)(p) {
		t.Fatalf("the mux uses %v before the host accepts them", p.TunnelSources)
	}
	host.fail(nil)
	mux.until("those of its Network", sources(next.TunnelSources))
	host.until("all", sources(old, next.TunnelSources))

	mux.fail(errors.New("no room"))
	r.delete(string(lb.KindNetwork), "next")
	host.until("those of the deleted Network too", sources(old, next.TunnelSources))
	mux.fail(nil)
	mux.until("those of the other Network", sources(old))
	host.until("the other Network's alone", sources(old))
}

// TestNetworksChangeWithinTheRoomOfHosts: several Networks are deleted together, and changes beyond
// the table size of hosts are refused before anything is stored.
func TestNetworksChangeWithinTheRoomOfHosts(t *testing.T) {
	r := newRig(t, store.NewMemory())
	named := func(i, sources int) *lb.Network {
		n := network()
		n.Name, n.Underlay, n.VIPs = fmt.Sprint("n", i), nil, []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("198.51.%d.0/24", i))}
		n.TunnelSources = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("100.%d.0.0/16", 64+sources)), netip.MustParsePrefix(fmt.Sprintf("fd53:6875:%x::/64", 0x1000+sources))}
		return n
	}
	const most = lb.MaxTunnelSources / 2
	var all []lb.Object
	for i := range most {
		all = append(all, named(i, i))
	}
	r.apply(all...)
	_, err := r.tryApply(named(0, most), named(1, most+1))
	if err == nil || !strings.Contains(err.Error(), "tunnelSources: 68 prefixes") || !strings.Contains(err.Error(), "smaller steps") {
		t.Errorf("a change beyond the room of hosts: %v", err)
	}
	var gone []*apiv1.ObjectRef
	for i := most - 6; i < most; i++ {
		gone = append(gone, &apiv1.ObjectRef{Kind: string(lb.KindNetwork), Name: fmt.Sprint("n", i)})
	}
	if _, err := r.admin.Delete(t.Context(), connect.NewRequest(&apiv1.DeleteRequest{Objects: gone})); err != nil {
		t.Errorf("delete six Networks: %v", err)
	}
}
