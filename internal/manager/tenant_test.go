package manager_test

import (
	"crypto/x509/pkix"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/store"
)

// ofTenant is a service of a tenant at 203.0.113.VIP.
func ofTenant(name, tenant string, vip int) *lb.Service {
	s := web(1)
	s.Name, s.Tenant, s.VIPs = name, tenant, []netip.Addr{netip.MustParseAddr(fmt.Sprintf("203.0.113.%d", vip))}
	return s
}

func tenant(name string, changes uint32) *lb.Tenant {
	t := &lb.Tenant{Name: name, Quotas: lb.Quotas{Changes: changes}, Hosts: prefixes("10.20.0.0/16", "2001:db8:20::/48")}
	if name == "shop" {
		// The other tenants use the addresses that shop shares with them.
		t.DIPs, t.VIPs = t.Hosts, network().VIPs
		t.Shared = []lb.Share{{Tenants: []string{"media", "bank", "other"}, DIPs: t.DIPs, VIPs: t.VIPs}}
	}
	lb.SetDefaults(t)
	return t
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func policy(name, owner string) *lb.Policy {
	p := &lb.Policy{Name: name, Tenant: owner, Limits: &lb.Limits{Packets: 1000}}
	lb.SetDefaults(p)
	return p
}

// shops is a manager with objects of two tenants and the operator, and a client of tenant shop.
func shops(t *testing.T) (*rig, shuntv1connect.ManagerClient) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), ofTenant("shop-web", "shop", 10), ofTenant("media-web", "media", 20),
		tenant("shop", 0), tenant("media", 0), policy("shop-limits", "shop"), policy("media-limits", "media"), policy("house", ""))
	return r, r.bearer(r.access("ann", "tenant", "shop", 0).Token)
}

func applyAs(t *testing.T, c shuntv1connect.ManagerClient, objs ...lb.Object) error {
	t.Helper()
	req := &apiv1.ApplyRequest{}
	for _, o := range objs {
		req.Objects = append(req.Objects, convert.ToObject(o))
	}
	_, err := c.Apply(t.Context(), connect.NewRequest(req))
	return err
}

func deleteAs(t *testing.T, c shuntv1connect.ManagerClient, kind, name string) error {
	t.Helper()
	_, err := c.Delete(t.Context(), connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{{Kind: kind, Name: name}}}))
	return err
}

func TestTenantReadsItsOwn(t *testing.T) {
	r, ann := shops(t)
	for _, c := range []struct{ kind, want string }{
		{"Service", "shop-web"}, {"Tenant", "shop"}, {"Policy", "house shop-limits"},
	} {
		res, err := ann.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: c.kind}))
		if err != nil {
			t.Fatal(err)
		}
		if got := names(res.Msg.Objects); got != c.want {
			t.Errorf("%s: %q, want %q", c.kind, got, c.want)
		}
	}
	for _, kind := range []string{"Node", "Network"} {
		_, err := ann.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: kind}))
		if connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "role tenant may not read "+strings.ToLower(kind)+"s") {
			t.Errorf("%ss: %v, want permission denied", kind, err)
		}
		changes, err := ann.Watch(t.Context(), connect.NewRequest(&apiv1.WatchRequest{Kind: kind}))
		if err != nil {
			t.Fatal(err)
		}
		if changes.Receive(); connect.CodeOf(changes.Err()) != connect.CodePermissionDenied {
			t.Errorf("watching %ss: %v, want permission denied", kind, changes.Err())
		}
		changes.Close()
	}
	for _, kind := range []string{"Node", "Network", "Manager"} {
		events, err := ann.Events(t.Context(), connect.NewRequest(&apiv1.EventsRequest{Kind: kind}))
		if err != nil {
			t.Fatal(err)
		}
		if events.Receive(); connect.CodeOf(events.Err()) != connect.CodePermissionDenied {
			t.Errorf("events of %ss: %v, want permission denied", kind, events.Err())
		}
		events.Close()
	}
	// Another tenant's object and a missing one yield the same error.
	for _, c := range [][2]string{{"Service", "media-web"}, {"Policy", "media-limits"}, {"Tenant", "media"}, {"Node", "mux1"}} {
		_, there := ann.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: c[0], Name: c[1]}))
		_, not := ann.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: c[0], Name: "nothing"}))
		if there == nil || not == nil || strings.ReplaceAll(there.Error(), c[1], "nothing") != not.Error() {
			t.Errorf("%s: %v, and of nothing %v", c, there, not)
		}
	}
	all, err := r.admin.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Service"}))
	if err != nil || names(all.Msg.Objects) != "media-web shop-web" {
		t.Errorf("the admin sees %v afterwards, error %v", names(all.Msg.Objects), err)
	}
}

func names(objs []*apiv1.Object) string {
	var out []string
	for _, o := range objs {
		obj, _ := convert.FromObject(o, 0)
		out = append(out, obj.ObjectName())
	}
	return strings.Join(out, " ")
}

func TestTenantWatchesItsOwn(t *testing.T) {
	r, ann := shops(t)
	s, err := ann.Watch(t.Context(), connect.NewRequest(&apiv1.WatchRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	next := func() string {
		t.Helper()
		if !s.Receive() {
			t.Fatal(s.Err())
		}
		out := names(s.Msg().Upserted)
		for _, d := range s.Msg().Deleted {
			out += " -" + d.Name
		}
		return out
	}
	if got := next(); got != "house shop-limits shop-web shop" {
		t.Errorf("at first: %q", got)
	}
	// Changes of other tenants are not sent, its own are: the next answer has the last change.
	r.apply(ofTenant("media-web", "media", 21))
	r.delete("Service", "media-web")
	r.apply(ofTenant("shop-web", "shop", 11))
	if got := next(); got != "shop-web" {
		t.Errorf("after a change of its own: %q", got)
	}
	// A service that moves to another tenant is sent as deleted. Another tenant's changes to it are
	// not sent.
	r.apply(ofTenant("shop-web", "media", 11))
	if got := next(); got != " -shop-web" {
		t.Errorf("after its service went to another tenant: %q", got)
	}
	r.delete("Service", "shop-web")
	r.apply(ofTenant("shop-web", "shop", 12))
	if got := next(); got != "shop-web" {
		t.Errorf("after a new one of that name: %q", got)
	}
}

func TestTenantWritesItsOwn(t *testing.T) {
	r, ann := shops(t)
	for name, o := range map[string]lb.Object{
		"a change of its service": ofTenant("shop-web", "shop", 11), "a new service": ofTenant("shop-api", "shop", 12),
		"its policy": policy("shop-more", "shop"), "its tenant as it is": tenant("shop", 0),
	} {
		if err := applyAs(t, ann, o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	node := muxNode(2)
	for name, c := range map[string]struct {
		o    lb.Object
		code connect.Code
		say  string
	}{
		"a service for another":      {ofTenant("new", "media", 30), connect.CodePermissionDenied, `must be "shop"`},
		"another's service":          {ofTenant("media-web", "shop", 30), connect.CodeAlreadyExists, "services/media-web: the name is taken"},
		"another's service as it is": {ofTenant("media-web", "media", 20), connect.CodePermissionDenied, `must be "shop"`},
		"a policy of the house":      {policy("house", ""), connect.CodePermissionDenied, `must be "shop"`},
		"to take the house's policy": {policy("house", "shop"), connect.CodeAlreadyExists, "taken"},
		"its quotas":                 {tenant("shop", 1000), connect.CodePermissionDenied, "tenants/shop"},
		"another tenant":             {tenant("media", 0), connect.CodePermissionDenied, "tenants/media"},
		"a new tenant":               {tenant("new", 0), connect.CodePermissionDenied, "tenants/new"},
		"a node":                     {node, connect.CodePermissionDenied, "nodes/mux2"},
		"the network":                {network(), connect.CodePermissionDenied, "networks/main"},
		"a VIP of a later name":      {ofTenant("a", "shop", 20), connect.CodeInvalidArgument, "services/a: vip[0]: 203.0.113.20: must belong to one service, and another one has it"},
		"a VIP of an earlier name":   {ofTenant("z", "shop", 20), connect.CodeInvalidArgument, "services/z: vip[0]: 203.0.113.20: must belong to one service, and another one has it"},
	} {
		err := applyAs(t, ann, c.o)
		if connect.CodeOf(err) != c.code || !strings.Contains(fmt.Sprint(err), c.say) {
			t.Errorf("%s: %v, want %v and %q", name, err, c.code, c.say)
		}
		text := fmt.Sprint(err)
		for _, d := range detailsOf(err) {
			text += d
		}
		if requested := convert.ToObject(c.o); strings.Contains(strings.ReplaceAll(text, c.o.ObjectName(), ""), "media") && !strings.Contains(requested.String(), `tenant:"media"`) {
			t.Errorf("%s: %s: tells of another tenant", name, text)
		}
	}
	// A service cannot name another tenant's policy. The error is the same as for a missing one.
	naming := func(name string) string {
		s := ofTenant("shop-api", "shop", 12)
		s.Policy = name
		return strings.Join(violations(t, applyAs(t, ann, s)), " ")
	}
	if there, not := naming("media-limits"), naming("nothing"); there == "" || strings.ReplaceAll(there, "media-limits", "nothing") != not {
		t.Errorf("a service that names another's policy: %s; one that does not exist: %s", there, not)
	}
	for _, c := range []struct {
		kind, name string
		code       connect.Code
	}{
		{"Service", "media-web", connect.CodeNotFound}, {"Policy", "media-limits", connect.CodeNotFound}, {"Tenant", "media", connect.CodeNotFound},
		{"Node", "mux1", connect.CodeNotFound}, {"Policy", "house", connect.CodePermissionDenied}, {"Tenant", "shop", connect.CodePermissionDenied},
	} {
		if err := deleteAs(t, ann, c.kind, c.name); connect.CodeOf(err) != c.code {
			t.Errorf("delete %s %s: %v, want %v", c.kind, c.name, err, c.code)
		}
	}
	if err := deleteAs(t, ann, "Service", "shop-web"); err != nil {
		t.Errorf("delete its service: %v", err)
	}
	r.apply(ofTenant("media-web", "media", 20)) // is unchanged
}

func detailsOf(err error) []string {
	var ce *connect.Error
	if !asConnect(err, &ce) {
		return nil
	}
	var out []string
	for _, d := range ce.Details() {
		if m, err := d.Value(); err == nil {
			out = append(out, fmt.Sprint(m))
		}
	}
	return out
}

func TestTenantAsksForItsOwn(t *testing.T) {
	r, ann := shops(t)
	mux := r.join("mux1", "mux")
	defer mux.stop()
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.Connected })
	trace := func(c shuntv1connect.ManagerClient, vip string) error {
		_, err := c.Trace(t.Context(), connect.NewRequest(&apiv1.TraceRequest{Client: "198.51.100.11", ClientPort: 4000, Vip: vip, Port: 80, Protocol: "tcp"}))
		return err
	}
	flows := func(c shuntv1connect.ManagerClient, vip string) (int, error) {
		res, err := c.Flows(t.Context(), connect.NewRequest(&apiv1.FlowsRequest{Vip: vip}))
		if err != nil {
			return 0, err
		}
		return len(res.Msg.Results[0].Flows), nil
	}
	if err := trace(ann, "203.0.113.10"); err != nil {
		t.Errorf("trace of its own: %v", err)
	}
	if err := trace(r.admin, "203.0.113.20"); err != nil {
		t.Errorf("the admin's trace: %v", err)
	}
	there, not := trace(ann, "203.0.113.20"), trace(ann, "203.0.113.99")
	if connect.CodeOf(there) != connect.CodeNotFound || strings.ReplaceAll(there.Error(), "113.20", "113.99") != not.Error() {
		t.Errorf("trace of another's: %v; of nobody's: %v", there, not)
	}
	if n, err := flows(r.admin, "203.0.113.10"); err != nil || n != 1 {
		t.Errorf("the admin's flows: %d, %v", n, err)
	}
	// The node of the test reports a flow without a service, so it belongs to none.
	if n, err := flows(ann, "203.0.113.10"); err != nil || n != 0 {
		t.Errorf("flows of no service: %d, %v", n, err)
	}
	if _, err := flows(ann, "203.0.113.20"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("flows of another's: %v", err)
	}
}

// TestTenantAsksForHealthOfItsOwn: for a backend that other tenants use, too, a tenant receives
// only the health within its own services. Nodes are queried only for that.
func TestTenantAsksForHealthOfItsOwn(t *testing.T) {
	r, ann := shops(t)
	mux := r.join("mux1", "mux")
	defer mux.stop()
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return st.Connected })
	for name, c := range map[string]struct {
		client shuntv1connect.ManagerClient
		want   []string
	}{"ann of shop": {ann, []string{"shop-web"}}, "the admin": {r.admin, []string{"media-web", "shop-web"}}} {
		res, err := c.client.HealthOf(t.Context(), connect.NewRequest(&apiv1.HealthOfRequest{Dip: "10.20.1.11"}))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, b := range res.Msg.Backends {
			got = append(got, b.Service)
			if len(b.Nodes) != 1 || b.Nodes[0].Node != "mux1" || b.Nodes[0].Words == "" {
				t.Errorf("%s: %v", name, b)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: a backend of %q, want %q", name, got, c.want)
		}
	}
}

func TestTenantsStatus(t *testing.T) {
	r, ann := shops(t)
	s := r.raw("mux1", "mux")
	receive(t, s)
	member := func(service string) *apiv1.MemberStatus {
		return &apiv1.MemberStatus{Service: service, Vip: "203.0.113.10", Protocol: "tcp", Port: 80, Dip: "10.20.1.11", DipPort: 8080, Member: 1, Alive: true}
	}
	full := &apiv1.NodeStatus{
		Error: "media-web: no room", Members: []*apiv1.MemberStatus{member("shop-web"), member("media-web"), member("gone")},
		Reasons: []*apiv1.ReasonCount{{Reason: "no_backend", Packets: 7}}, Routes: []*apiv1.RouteStatus{{Prefix: "203.0.113.20/32"}},
		Peers: []*apiv1.PeerStatus{{Address: "10.10.0.1"}}, Tables: []*apiv1.TableStatus{{Name: "rings"}}, Flows: []*apiv1.FlowClassStatus{{Class: "tcp"}}, Drained: true,
	}
	if err := s.Send(&apiv1.NodeReport{Status: proto.CloneOf(full)}); err != nil {
		t.Fatal(err)
	}
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return len(st.Members) == 3 })
	res, err := ann.Status(t.Context(), connect.NewRequest(&apiv1.StatusRequest{}))
	if err != nil || len(res.Msg.Nodes) != 1 {
		t.Fatalf("status: %v %v", res, err)
	}
	n := res.Msg.Nodes[0]
	want := &apiv1.NodeStatus{Name: "mux1", Role: "mux", Connected: true, LastSeen: n.LastSeen, Members: full.Members[:1]}
	if !proto.Equal(n, want) {
		t.Errorf("status: %v, want %v", n, want)
	}
	if res, err = ann.Status(t.Context(), connect.NewRequest(&apiv1.StatusRequest{MembersOf: "media-web"})); err != nil || len(res.Msg.Nodes) != 0 {
		t.Errorf("members of another's service: %v %v", res, err)
	}
	if res, err = r.admin.Status(t.Context(), connect.NewRequest(&apiv1.StatusRequest{MembersOf: "shop-web"})); err != nil || len(res.Msg.Nodes) != 1 && len(res.Msg.Nodes) != 2 {
		t.Errorf("members of a service: %v %v", res, err)
	}
	for _, n := range res.Msg.Nodes {
		if bare := (&apiv1.NodeStatus{Name: n.Name, Role: n.Role, Connected: n.Connected, LastSeen: n.LastSeen, Members: n.Members}); !proto.Equal(n, bare) {
			t.Errorf("a node has more than members of a service: %v", n)
		}
		for _, m := range n.Members {
			if m.Service != "shop-web" {
				t.Errorf("%s has a member of %s", n.Name, m.Service)
			}
		}
	}
	if _, err := ann.Status(t.Context(), connect.NewRequest(&apiv1.StatusRequest{Node: "host1"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("status of a node without members of the tenant: %v", err)
	}
	r.status("mux1", func(st *apiv1.NodeStatus) bool { return len(st.Members) == 3 && len(st.Routes) == 1 })
}

func TestTenantByCertificate(t *testing.T) {
	r, _ := shops(t)
	hc := r.httpClient(r.certified(pkix.Name{CommonName: "bob", OrganizationalUnit: []string{"tenant"}, Organization: []string{"media"}}))
	bob := shuntv1connect.NewManagerClient(hc, "https://"+r.addr)
	res, err := bob.Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Service"}))
	if err != nil || names(res.Msg.Objects) != "media-web" {
		t.Errorf("bob of media sees %v, error %v", res, err)
	}
}
