package manager_test

import (
	"net/netip"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// opening is a service whose hosts perform handshakes: its backends are processes of them.
func opening(hosts ...int) *lb.Service {
	s := web(hosts...)
	e := &s.Endpoints[0]
	e.Affinity, e.Rewrite, e.Cookie.Form = lb.AffinityCookie, lb.RewriteNone, lb.CookieCO
	for i := range e.Backends {
		e.Backends[i].DIPs, e.Backends[i].Port = []netip.Addr{e.Backends[i].Host}, e.Port
	}
	lb.SetDefaults(s)
	return s
}

// TestHostsThatMakeNoHandshakes: a new backend on a host that reported that it cannot perform
// handshakes is refused. The error has the backend's field and the host's reason. An existing
// backend is kept, and so are the host's other functions.
func TestHostsThatMakeNoHandshakes(t *testing.T) {
	const why = "the kernel lacks it (Linux 6.9)"
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), hostNode(2), hostNode(3), muxNode(1))
	able, unable := r.join("host1", "host"), r.join("host2", "host")
	unable.mu.Lock()
	unable.status = func() *apiv1.NodeStatus { return &apiv1.NodeStatus{NoHandshakes: why} }
	unable.mu.Unlock()
	r.status("host1", func(st *apiv1.NodeStatus) bool { return len(st.GetRoutes()) > 0 })
	// The capability of host3 is unknown.
	r.apply(opening(1, 3))
	r.status("host2", func(st *apiv1.NodeStatus) bool { return st.GetNoHandshakes() == why })
	want := "services/web: endpoints[0].backends[1].host: 10.20.2.1: must be a host that can make handshakes, as cookie.form co needs: host2 says: " + why
	for _, dry := range []bool{true, false} {
		_, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{convert.ToObject(opening(1, 2, 3))}, DryRun: dry}))
		if err == nil {
			t.Fatalf("dry %v: a host that cannot is taken", dry)
		}
		if got := violations(t, err); connect.CodeOf(err) != connect.CodeInvalidArgument || len(got) != 1 || got[0] != want {
			t.Errorf("dry %v: %v: got %q, want %q", dry, err, got, want)
		}
	}
	// A node that takes the address of a backend in the same change has not reported yet.
	moved, fresh := hostNode(2), hostNode(4)
	moved.Addresses, fresh.Addresses = []netip.Addr{netip.MustParseAddr("10.20.9.1")}, []netip.Addr{netip.MustParseAddr("10.20.2.1")}
	other := opening(1, 2, 3)
	req := &apiv1.ApplyRequest{DryRun: true}
	for _, o := range []lb.Object{moved, fresh, other} {
		req.Objects = append(req.Objects, convert.ToObject(o))
	}
	if _, err := r.admin.Apply(t.Context(), connect.NewRequest(req)); err != nil {
		t.Errorf("a new node at the address: %v", err)
	}
	// Other forms and other affinities need no capability of the host.
	r.apply(carrying(1, 2, 3))
	if _, err := r.tryApply(opening(1, 2, 3)); err == nil || !strings.Contains(strings.Join(violations(t, err), "\n"), "host2 says") {
		t.Errorf("from another form to this one: %v", err)
	}
	r.apply(opening(1, 3))
	// A host that lost the capability: existing backends may be changed, but not added.
	able.mu.Lock()
	able.status = func() *apiv1.NodeStatus { return &apiv1.NodeStatus{NoHandshakes: "it has another kernel now"} }
	able.mu.Unlock()
	r.status("host1", func(st *apiv1.NodeStatus) bool { return st.GetNoHandshakes() != "" })
	drained := opening(1, 3)
	drained.Endpoints[0].Backends[0].Drain = true
	r.apply(drained)
	more := opening(1, 3)
	more.Endpoints = append(more.Endpoints, more.Endpoints[0])
	more.Endpoints[1].Port = 81
	more.Endpoints[1].Backends = opening(1).Endpoints[0].Backends
	more.Endpoints[1].Backends[0].Port = 81
	if _, err := r.tryApply(more); err == nil || !strings.HasPrefix(violations(t, err)[0], "services/web: endpoints[1].backends[0].host: 10.20.1.1: ") {
		t.Errorf("another endpoint of a host that can no more: %v", err)
	}
}
