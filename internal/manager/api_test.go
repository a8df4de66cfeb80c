package manager_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

func (r *rig) get(kind, name string) []*apiv1.Object {
	r.t.Helper()
	res, err := r.admin.Get(r.t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: kind, Name: name}))
	if err != nil {
		r.t.Fatal(err)
	}
	return res.Msg.Objects
}

func TestApplyTellsWhatItDid(t *testing.T) {
	r := newRig(t, store.NewMemory())
	first := r.apply(network(), hostNode(1), web(1))
	for _, ch := range first.Changes {
		if ch.Action != apiv1.Change_ACTION_CREATED || ch.Before != nil || ch.After.Revision != first.Revision || ch.After.Generation != 1 {
			t.Errorf("created: %v", ch)
		}
	}
	again := r.apply(network(), hostNode(1), web(1))
	if again.Revision != first.Revision {
		t.Errorf("applying the same again: revision %d, want %d", again.Revision, first.Revision)
	}
	for _, ch := range again.Changes {
		if ch.Action != apiv1.Change_ACTION_UNCHANGED {
			t.Errorf("unchanged: %v", ch)
		}
	}
	dry, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{convert.ToObject(web(1, 2))}, DryRun: true}))
	if err != nil || dry.Msg.Changes[0].Action != apiv1.Change_ACTION_UPDATED || dry.Msg.Revision != first.Revision {
		t.Fatalf("dry run: %v %v", dry, err)
	}
	if got := r.get("Service", "web"); len(got[0].GetService().Endpoints[0].Backends) != 1 {
		t.Fatalf("a dry run stored: %v", got)
	}
	second := r.apply(web(1, 2))
	ch := second.Changes[0]
	if ch.Action != apiv1.Change_ACTION_UPDATED || ch.After.Generation != 2 || len(ch.Before.GetService().Endpoints[0].Backends) != 1 || second.Revision <= first.Revision {
		t.Fatalf("updated: %v", ch)
	}
	if got := r.get("Service", "")[0]; !proto.Equal(got, ch.After) {
		t.Fatalf("got %v, want %v", got, ch.After)
	}
	r.delete("Service", "web")
	if len(r.get("Service", "")) != 0 {
		t.Fatal("it is still there")
	}
}

// service returns a valid service, changed by f.
func service(f func(*apiv1.Service)) *apiv1.Object {
	o := convert.ToObject(web(1))
	f(o.GetService())
	return o
}

func TestBadInputIsRefused(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), web(1))
	other := func(f func(*apiv1.Service)) *apiv1.Object {
		return service(func(s *apiv1.Service) {
			s.Name, s.Vip = "other", []string{"203.0.113.11"}
			f(s)
		})
	}
	backend := func(f func(*apiv1.Backend)) *apiv1.Object {
		return other(func(s *apiv1.Service) { f(s.Endpoints[0].Backends[0]) })
	}
	for name, c := range map[string]struct {
		in   *apiv1.Object
		want string // part of the first violation
	}{
		"nothing":           {&apiv1.Object{}, "objects[0]"},
		"nil service":       {&apiv1.Object{Kind: &apiv1.Object_Service{}}, "services: name"},
		"empty service":     {&apiv1.Object{Kind: &apiv1.Object_Service{Service: &apiv1.Service{}}}, "services: name"},
		"empty node":        {&apiv1.Object{Kind: &apiv1.Object_Node{Node: &apiv1.Node{}}}, "nodes: name"},
		"empty network":     {&apiv1.Object{Kind: &apiv1.Object_Network{Network: &apiv1.Network{}}}, "networks: name"},
		"name with a slash": {other(func(s *apiv1.Service) { s.Name = "a/b" }), "name"},
		"no vip":            {other(func(s *apiv1.Service) { s.Vip = nil }), "vip"},
		"bad vip":           {other(func(s *apiv1.Service) { s.Vip = []string{"203.0.113.999"} }), "services/other: vip[0]: 203.0.113.999: must be"},
		"mapped vip":        {other(func(s *apiv1.Service) { s.Vip = []string{"::ffff:203.0.113.11"} }), "vip[0]"},
		"vip of no network": {other(func(s *apiv1.Service) { s.Vip = []string{"192.0.2.1"} }), "vip[0]: 192.0.2.1"},
		"taken vip":         {other(func(s *apiv1.Service) { s.Vip = []string{"203.0.113.10"} }), "203.0.113.10"},
		"no endpoints":      {other(func(s *apiv1.Service) { s.Endpoints = nil }), "endpoints"},
		"nil endpoint":      {other(func(s *apiv1.Service) { s.Endpoints[0] = nil }), "endpoints[0]"},
		"port 0":            {other(func(s *apiv1.Service) { s.Endpoints[0].Port = "0" }), "endpoints[0].port: 0: must be 1 to 65535"},
		"port range":        {other(func(s *apiv1.Service) { s.Endpoints[0].Port = "90-80" }), "endpoints[0].port: 90-80: must be 1 to 65535, a range"},
		"ranges overlap": {other(func(s *apiv1.Service) {
			e := s.Endpoints[0]
			e.Port, e.Backends[0].Port, e.Health = "80-90", 0, nil
			twice := proto.CloneOf(e)
			twice.Port = "90-91"
			s.Endpoints = append(s.Endpoints, twice)
		}), "endpoints[1]: tcp port 90-91: must not overlap the range of endpoints[0]: both hold port 90"},
		"allowed and denied": {other(func(s *apiv1.Service) {
			s.Sources = &apiv1.Sources{Allow: []string{"192.0.2.0/24"}, Deny: []string{"192.0.2.0/24"}}
		}), "sources.deny[0]: 192.0.2.0/24: must not be allowed and denied"},
		"outer destination shared": {other(func(s *apiv1.Service) {
			b := proto.CloneOf(s.Endpoints[0].Backends[0])
			b.Port++
			s.Endpoints[0].Backends = append(s.Endpoints[0].Backends, b)
		}), "with encap ipip: gue tells them apart"},
		"quic without quic": {other(func(s *apiv1.Service) { s.Endpoints[0].Quic = &apiv1.QUIC{} }), "endpoints[0].quic: : must be left out: the protocol is not quic"},
		"long server id": {other(func(s *apiv1.Service) {
			e := s.Endpoints[0]
			e.Protocol, e.Affinity, e.RepairWindow, e.Quic = "quic", "", nil, &apiv1.QUIC{ServerIdLength: 16}
		}), "quic.serverIdLength: 16: must be 2 to 15"},
		"unknown protocol": {other(func(s *apiv1.Service) { s.Endpoints[0].Protocol = "sctp" }), "must be tcp, udp, quic or any"},
		"path":             {other(func(s *apiv1.Service) { s.Endpoints[0].Path = "bypass" }), lb.NotSupported},
		"affinity":         {other(func(s *apiv1.Service) { s.Endpoints[0].Affinity = "sticky" }), "must be flow, hash or cookie"},
		"track":            {other(func(s *apiv1.Service) { s.Endpoints[0].Affinity, s.Endpoints[0].Track = "flow", true }), "only cookie endpoints"},
		"form": {other(func(s *apiv1.Service) {
			s.Endpoints[0].Affinity, s.Endpoints[0].Cookie = "cookie", &apiv1.Cookie{Form: "co"}
		}), "must be none with cookie.form co"},
		"scheduler":           {other(func(s *apiv1.Service) { s.Endpoints[0].Scheduler = "fastest" }), "scheduler"},
		"scheduler and hash":  {other(func(s *apiv1.Service) { s.Endpoints[0].Affinity, s.Endpoints[0].Scheduler = "hash", "p2c" }), "must be maglev with affinity hash"},
		"snat":                {other(func(s *apiv1.Service) { s.Snat = []string{"10.20.1.99"} }), "snat[0]: 10.20.1.99"},
		"same endpoint twice": {other(func(s *apiv1.Service) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) }), "endpoints[1]"},
		"no backend":          {other(func(s *apiv1.Service) { s.Endpoints[0].Backends = nil }), "backends"},
		"nil backend":         {other(func(s *apiv1.Service) { s.Endpoints[0].Backends[0] = nil }), "backends[0]"},
		"no host":             {backend(func(b *apiv1.Backend) { b.Host = "" }), "backends[0].host"},
		"no dip":              {backend(func(b *apiv1.Backend) { b.Dip = nil }), "dip"},
		"weight":              {backend(func(b *apiv1.Backend) { b.Weight = proto.Uint32(1001) }), "backends[0].weight: 1001"},
		"big weight":          {backend(func(b *apiv1.Backend) { b.Weight = proto.Uint32(1<<16 + 1) }), "backends[0].weight: 65537"},
		"big port":            {backend(func(b *apiv1.Backend) { b.Port = 1<<16 + 80 }), "backends[0].port: 65616"},
		"two checks": {other(func(s *apiv1.Service) {
			s.Endpoints[0].Health = &apiv1.Health{Http: &apiv1.HTTPCheck{Path: "/"}, Tcp: &apiv1.TCPCheck{}}
		}), "health"},
		"negative interval": {other(func(s *apiv1.Service) {
			s.Endpoints[0].Health.Interval = &durationpb.Duration{Seconds: -1}
		}), "health.interval: -1s"},
		"impossible timeout": {other(func(s *apiv1.Service) {
			s.Endpoints[0].Health.Timeout = &durationpb.Duration{Seconds: 1, Nanos: -1}
		}), "health.timeout"},
		"unknown role":     {&apiv1.Object{Kind: &apiv1.Object_Node{Node: &apiv1.Node{Name: "n", Role: "switch", Address: []string{"10.10.0.9"}}}}, "role"},
		"taken address":    {&apiv1.Object{Kind: &apiv1.Object_Node{Node: &apiv1.Node{Name: "n", Role: "host", Address: []string{"10.20.1.1"}}}}, "10.20.1.1"},
		"prefix with host": {&apiv1.Object{Kind: &apiv1.Object_Network{Network: &apiv1.Network{Name: "n", Vips: []string{"203.0.113.1/24"}}}}, "vips[0]: 203.0.113.1/24"},
	} {
		t.Run(name, func(t *testing.T) {
			before := r.get("Service", "")
			// A good object in the same request must not be stored either.
			_, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{c.in, convert.ToObject(hostNode(9))}}))
			if connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Fatalf("error %v: must be invalid_argument", err)
			}
			got := violations(t, err)
			if len(got) == 0 || !strings.Contains(got[0], c.want) {
				t.Errorf("violations %q: must have %q", got, c.want)
			}
			after := r.get("Service", "")
			if len(before) != len(after) || !proto.Equal(before[0], after[0]) || len(r.get("Node", "")) != 2 {
				t.Errorf("something changed: %v", after)
			}
		})
	}
}

func TestBadRequests(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), web(1))
	ctx := t.Context()
	for name, c := range map[string]struct {
		call func() error
		want connect.Code
	}{
		"apply nothing":  {func() error { _, err := r.admin.Apply(ctx, connect.NewRequest(&apiv1.ApplyRequest{})); return err }, connect.CodeInvalidArgument},
		"delete nothing": {func() error { _, err := r.admin.Delete(ctx, connect.NewRequest(&apiv1.DeleteRequest{})); return err }, connect.CodeInvalidArgument},
		"delete a stranger": {func() error {
			_, err := r.admin.Delete(ctx, connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{{Kind: "Service", Name: "web"}, {Kind: "Service", Name: "nope"}}}))
			return err
		}, connect.CodeNotFound},
		"delete an unknown kind": {func() error {
			_, err := r.admin.Delete(ctx, connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{{Kind: "Gadget", Name: "x"}}}))
			return err
		}, connect.CodeInvalidArgument},
		"delete a network in use": {func() error {
			_, err := r.admin.Delete(ctx, connect.NewRequest(&apiv1.DeleteRequest{Objects: []*apiv1.ObjectRef{{Kind: "Network", Name: "main"}}}))
			return err
		}, connect.CodeInvalidArgument},
		"get an unknown kind": {func() error {
			_, err := r.admin.Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: "service"}))
			return err
		}, connect.CodeInvalidArgument},
		"get a stranger": {func() error {
			_, err := r.admin.Get(ctx, connect.NewRequest(&apiv1.GetRequest{Kind: "Node", Name: "nope"}))
			return err
		}, connect.CodeNotFound},
		"status of a stranger": {func() error {
			_, err := r.admin.Status(ctx, connect.NewRequest(&apiv1.StatusRequest{Node: "nope"}))
			return err
		}, connect.CodeNotFound},
		"trace without addresses": {func() error { _, err := r.admin.Trace(ctx, connect.NewRequest(&apiv1.TraceRequest{})); return err }, connect.CodeInvalidArgument},
		"trace without muxes": {func() error {
			_, err := r.admin.Trace(ctx, connect.NewRequest(&apiv1.TraceRequest{Client: "1.1.1.1", ClientPort: 1, Vip: "203.0.113.10", Port: 80, Protocol: "tcp"}))
			return err
		}, connect.CodeFailedPrecondition},
		"token for a bad name": {func() error {
			_, err := r.admin.CreateToken(ctx, connect.NewRequest(&apiv1.CreateTokenRequest{Node: "../x", Role: "mux"}))
			return err
		}, connect.CodeInvalidArgument},
		"token for an admin": {func() error {
			_, err := r.admin.CreateToken(ctx, connect.NewRequest(&apiv1.CreateTokenRequest{Node: "x", Role: "admin"}))
			return err
		}, connect.CodeInvalidArgument},
		"token for a century": {func() error {
			_, err := r.admin.CreateToken(ctx, connect.NewRequest(&apiv1.CreateTokenRequest{Node: "x", Role: "mux", Ttl: &durationpb.Duration{Seconds: 1 << 32}}))
			return err
		}, connect.CodeInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.call(); connect.CodeOf(err) != c.want {
				t.Errorf("error %v: must be %v", err, c.want)
			}
		})
	}
	if len(r.get("Service", "web")) != 1 || len(r.get("Network", "")) != 1 {
		t.Error("a refused delete deleted")
	}
}

func TestEveryProtocolOfConnect(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), web(1))
	hc := r.httpClient(r.adminTLS())
	for name, opts := range map[string][]connect.ClientOption{
		"connect": nil, "json": {connect.WithProtoJSON()}, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()},
	} {
		res, err := shuntv1connect.NewManagerClient(hc, "https://"+r.addr, opts...).Get(t.Context(), connect.NewRequest(&apiv1.GetRequest{Kind: "Service"}))
		if err != nil || len(res.Msg.Objects) != 1 {
			t.Errorf("%s: %v %v", name, res, err)
		}
	}
	post, err := hc.Post("https://"+r.addr+shuntv1connect.ManagerGetProcedure, "application/json", strings.NewReader(`{"kind": "Service"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer post.Body.Close()
	body, _ := io.ReadAll(post.Body)
	var plain struct {
		Objects []struct{ Service struct{ Name string } }
	}
	if err := json.Unmarshal(body, &plain); err != nil || len(plain.Objects) != 1 || plain.Objects[0].Service.Name != "web" {
		t.Errorf("plain JSON: %s %v", body, err)
	}
	bad, err := hc.Post("https://"+r.addr+shuntv1connect.ManagerApplyProcedure, "application/json", strings.NewReader(`{"objects": [{"service": {"name": 5}}`))
	if err != nil || bad.StatusCode != http.StatusBadRequest {
		t.Errorf("broken JSON: %v %v", bad.Status, err)
	}
	bad.Body.Close()
}

func TestPlainHTTPIsRefused(t *testing.T) {
	r := newRig(t, store.NewMemory())
	conn, err := tls.Dial("tcp", r.addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
	if err == nil {
		conn.Close()
		t.Error("TLS 1.2 was accepted")
	}
	res, err := http.Post("http://"+r.addr+shuntv1connect.ManagerGetProcedure, "application/json", bytes.NewBufferString("{}"))
	if err == nil {
		defer res.Body.Close()
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP: %s", res.Status)
		}
	}
}

func TestWatch(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), web(1))
	w, err := r.admin.Watch(t.Context(), connect.NewRequest(&apiv1.WatchRequest{Kind: "Service"}))
	if err != nil {
		t.Fatal(err)
	}
	next := func() *apiv1.WatchResponse {
		t.Helper()
		if !w.Receive() {
			t.Fatal(w.Err())
		}
		return w.Msg()
	}
	if m := next(); !m.Synced || len(m.Upserted) != 1 || m.Upserted[0].GetService().Name != "web" {
		t.Fatalf("present state: %v", m)
	}
	r.apply(hostNode(2))
	rev := r.apply(web(1, 2)).Revision
	if m := next(); m.Revision != rev || len(m.Upserted) != 1 || len(m.Upserted[0].GetService().Endpoints[0].Backends) != 2 {
		t.Fatalf("change: %v", m)
	}
	r.delete("Service", "web")
	if m := next(); len(m.Deleted) != 1 || m.Deleted[0].Name != "web" {
		t.Fatalf("deletion: %v", m)
	}
}

func TestManyWritersLoseNothing(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1))
	const writers, writes = 8, 10
	errs := make(chan error, writers)
	for w := range writers {
		go func() {
			for i := range writes {
				s := web(1)
				s.Name, s.VIPs = fmt.Sprintf("s%d", w), []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(100 + w)})}
				s.Endpoints[0].Backends[0].Weight = uint16(i + 1)
				if _, err := r.tryApply(s); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range writers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range r.get("Service", "") {
		if o.Generation != writes {
			t.Errorf("%s: generation %d, want %d", o.GetService().Name, o.Generation, writes)
		}
	}
	mux := r.join("mux1", "mux")
	r.apply(muxNode(1))
	p := mux.until("all services", func(p plan.Plan) bool { return len(p.Endpoints) == writers })
	for _, ep := range p.Endpoints {
		if ep.Generation != writes || ep.Members[0].Weight != writes || ep.Members[0].ID != 0 {
			t.Errorf("endpoint %+v", ep)
		}
	}
}

// TestRevisionIsACondition checks that an object changed since it was read is not overwritten.
func TestRevisionIsACondition(t *testing.T) {
	r := newRig(t, store.NewMemory())
	read := r.apply(network(), hostNode(1), hostNode(2), web(1)).Revision
	now := r.apply(web(1, 2)).Revision
	late := convert.ToObject(web(2))
	late.Revision = read
	send := func() error {
		_, err := r.admin.Apply(t.Context(), connect.NewRequest(&apiv1.ApplyRequest{Objects: []*apiv1.Object{late}}))
		return err
	}
	err := send()
	want := fmt.Sprintf("services/web: revision: %d: must be %d, the present one: it was changed since it was read", read, now)
	if connect.CodeOf(err) != connect.CodeAborted || !strings.HasSuffix(err.Error(), want) {
		t.Fatalf("got %v, want aborted: %s", err, want)
	}
	late.Revision = now
	if err := send(); err != nil {
		t.Fatal(err)
	}
}
