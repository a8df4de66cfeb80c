package manager

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// placed is a manager whose clock the test advances, with muxes whose reports the test sends.
type placed struct {
	*kept
	p     *placement
	muxes map[string]*session
}

func newPlaced(t *testing.T) *placed {
	r := &placed{kept: newKept(t), muxes: map[string]*session{}}
	r.term()
	n := &lb.Network{Name: "main", VIPs: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, Underlay: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	r.apply(n)
	return r
}

// term begins a term's placement as a new leader does, with the state of the store only.
func (r *placed) term() {
	if r.p != nil {
		r.m.view.unsubscribe(r.p)
	}
	r.p = newPlacement(r.m)
	r.m.view.subscribe(r.p)
	r.p.begin()
}

func (r *placed) node(name string, edit func(*lb.Node)) {
	r.t.Helper()
	n := &lb.Node{Name: name, Role: lb.RoleMux, Addresses: []netip.Addr{netip.MustParseAddr("10.10.0." + strings.TrimPrefix(name, "mux"))}}
	if edit != nil {
		edit(n)
	}
	r.apply(n)
}

// join adds connected muxes that announce their VIPs.
func (r *placed) join(names ...string) {
	r.t.Helper()
	for _, name := range names {
		r.node(name, nil)
		r.connect(name)
	}
}

func (r *placed) connect(name string) {
	r.streams++
	s := &session{name: name, role: lb.RoleMux, number: r.streams}
	r.muxes[name] = s
	r.m.reports.connected(s, &apiv1.Hello{}, r.clock.Now())
}

func (r *placed) disconnect(name string) {
	r.m.reports.disconnected(r.muxes[name], r.clock.Now())
	delete(r.muxes, name)
}

// service applies a service with the VIPs 203.0.113.i.
func (r *placed) service(name string, replicas uint32, vips ...int) {
	r.t.Helper()
	s := &lb.Service{Name: name, Endpoints: []lb.Endpoint{{Protocol: lb.TCP, Port: 80}}, Placement: &lb.Placement{Replicas: replicas}}
	for _, i := range vips {
		s.VIPs = append(s.VIPs, vipOf(i))
	}
	s.Endpoints[0].Backends = []lb.Backend{{DIPs: []netip.Addr{netip.MustParseAddr("10.20.1.11")}, Port: 8080, Host: netip.MustParseAddr("10.20.1.1"), Weight: 1}}
	r.apply(s)
}

func vipOf(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("203.0.113.%d", i)) }

// say sends reports of muxes that have applied everything and announce all VIPs that they have.
func (r *placed) say(names ...string) {
	r.t.Helper()
	for _, name := range names {
		r.m.view.mu.RLock()
		p := plan.ForNode(&r.m.view.state, name)
		r.m.view.mu.RUnlock()
		st := &apiv1.NodeStatus{}
		for _, e := range p.Endpoints {
			st.Routes = append(st.Routes, &apiv1.RouteStatus{Prefix: netip.PrefixFrom(e.Key.VIP, e.Key.VIP.BitLen()).String(), Advertised: true})
		}
		r.m.reports.report(r.muxes[name], st, r.clock.Now())
		r.m.reports.acked(r.muxes[name], p.Revision, r.clock.Now())
	}
}

func (r *placed) round() {
	r.t.Helper()
	if _, err := r.p.round(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// later advances the clock and runs a round.
func (r *placed) later(d time.Duration) {
	r.t.Helper()
	r.clock.Advance(d)
	r.round()
}

// have returns the muxes with a VIP in their plans.
func (r *placed) have(i int) []string {
	r.m.view.mu.RLock()
	defer r.m.view.mu.RUnlock()
	var out []string
	for name := range r.m.view.state.Nodes {
		if slices.ContainsFunc(plan.ForNode(&r.m.view.state, name).Endpoints, func(e plan.Endpoint) bool { return e.Key.VIP == vipOf(i) }) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (r *placed) at(i int) plan.Place {
	p, _ := r.m.view.place(plan.VIPKey(vipOf(i)))
	return p
}

func (r *placed) want(what string, i int, muxes []string, leaving ...string) {
	r.t.Helper()
	if got := r.at(i); !slices.Equal(got.Muxes, muxes) || !slices.Equal(got.Leaving, leaving) {
		r.t.Fatalf("%s: the VIP is on %v, leaves %v; must be %v, %v", what, got.Muxes, got.Leaving, muxes, leaving)
	}
	all := slices.Sorted(slices.Values(slices.Concat(muxes, leaving)))
	if have := r.have(i); !slices.Equal(have, all) {
		r.t.Fatalf("%s: %v have the VIP in their plans, must be %v", what, have, all)
	}
}

// other returns a mux without the VIP.
func (r *placed) other(i int) string {
	for name := range r.muxes {
		if !slices.Contains(r.at(i).All(), name) {
			return name
		}
	}
	r.t.Fatal("the VIP is on every mux")
	return ""
}
