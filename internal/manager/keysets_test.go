package manager_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/api/v1/shuntv1connect"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/store"
)

// carrying returns a service whose packets carry their member, at tcp 80 and quic 443, with a
// backend on each of the hosts.
func carrying(hosts ...int) *lb.Service {
	s := web(hosts...)
	s.Endpoints = append(s.Endpoints, lb.Endpoint{Protocol: lb.UDP, QUIC: &lb.QUIC{}, Port: 443, Backends: slices.Clone(s.Endpoints[0].Backends)})
	s.Endpoints[0].Affinity = lb.AffinityCookie
	lb.SetDefaults(s)
	return s
}

func (r *rig) keys(scopes ...string) []*apiv1.KeySet {
	r.t.Helper()
	res, err := r.admin.ListKeys(r.t.Context(), connect.NewRequest(&apiv1.ListKeysRequest{Scopes: scopes}))
	if err != nil {
		r.t.Fatal(err)
	}
	return res.Msg.GetKeys()
}

// keysUntil waits until the keys of a purpose fit, and returns them.
func (r *rig) keysUntil(purpose, what string, fits func(*apiv1.KeySet) bool) *apiv1.KeySet {
	r.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		all := r.keys("web")
		for _, k := range all {
			if k.GetPurpose() == purpose && fits(k) {
				return k
			}
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("waiting for %s: %v", what, all)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func phase(want string, epochs int) func(*apiv1.KeySet) bool {
	return func(k *apiv1.KeySet) bool { return k.GetPhase() == want && len(k.GetEpochs()) == epochs }
}

func (r *rig) rotate(c shuntv1connect.ManagerClient, scopes ...string) (*apiv1.RotateKeysResponse, error) {
	res, err := c.RotateKeys(r.t.Context(), connect.NewRequest(&apiv1.RotateKeysRequest{Scopes: scopes, All: len(scopes) == 0}))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// liveEpochs returns the epochs of the keys of the only VIP in a plan, the one in use first.
func liveEpochs(p plan.Plan) (out []uint32) {
	if len(p.Cookies) != 1 {
		return nil
	}
	out = append(out, p.Cookies[0].Mint)
	for _, k := range p.Cookies[0].Keys {
		out = append(out, k.Epoch)
	}
	return out
}

func has(epochs ...uint32) func(plan.Plan) bool {
	return func(p plan.Plan) bool { return slices.Equal(liveEpochs(p), epochs) }
}

// TestKeysAreRotated: a mux that applies nothing delays a rotation, across a change of leader, and
// ListKeys names it. No host has the new key then. Once the mux applies it, hosts stamp with the
// new key, and the previous key is in its overlap.
func TestKeysAreRotated(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), muxNode(2), carrying(1))
	mux1, mux2, host := r.join("mux1", "mux"), r.join("mux2", "mux"), r.join("host1", "host")
	first := mux1.until("the first keys", has(1, 1))
	if len(first.CIDs) != 1 || first.CIDs[0].Mint != 1 || first.CIDs[0].Keys[0].Key == first.Cookies[0].Keys[0].Key {
		t.Errorf("keys of connection ids: %+v", first.CIDs)
	}
	mux2.until("the same", func(p plan.Plan) bool { return has(1, 1)(p) && p.Cookies[0].Keys[0] == first.Cookies[0].Keys[0] })
	stamps := host.until("a key to stamp with", has(1, 1))
	if stamps.Cookies[0].Keys[0] != first.Cookies[0].Keys[0] || len(stamps.CIDs) != 0 || !stamps.Bindings[0].Cookie || stamps.Bindings[1].QUIC == nil {
		t.Errorf("the host has %+v", stamps)
	}
	r.keysUntil("cookie", "the first keys everywhere", phase("steady", 1))
	r.keysUntil("cid", "the first keys everywhere", phase("steady", 1))

	mux2.fail(errors.New("no room"))
	res, err := r.rotate(r.admin, "203.0.113.10")
	if err != nil || len(res.GetKeys()) != 2 || len(res.GetWaiting()) != 0 {
		t.Fatalf("rotation: %v, %v", res, err)
	}
	mux1.until("both keys", has(1, 1, 2))
	waits := func(k *apiv1.KeySet) bool {
		return k.GetPhase() == "spread" && slices.Equal(k.GetWaitsFor(), []string{"mux2"}) && k.GetWaits() == 1
	}
	r.keysUntil("cookie", "mux2 to be waited for", waits)
	if _, err := r.rotate(r.admin, "web"); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(violations(t, err)[0], "until the rotation to epoch 2 is over") {
		t.Errorf("a second rotation: %v", err)
	}
	if res, err := r.rotate(r.admin); err != nil || len(res.GetKeys()) != 0 || len(res.GetWaiting()) != 2 || !strings.Contains(res.GetWaiting()[0].GetWrong(), "is over") {
		t.Errorf("a rotation of all: %v, %v", res, err)
	}
	r.stop()
	r.start()
	k := r.keysUntil("cookie", "mux2 to be waited for by another leader", waits)
	if e := k.GetEpochs(); len(e) != 2 || !e[0].GetMints() || e[1].GetMints() {
		t.Errorf("epochs %v: epoch 1 is in use", e)
	}
	for done := false; !done; {
		select {
		case p := <-host.plans:
			if len(p.Cookies) != 0 && !has(1, 1)(p) {
				t.Fatalf("the host has %+v before mux2 has", p.Cookies)
			}
		default:
			done = true
		}
	}
	mux2.fail(nil)
	host.until("the new key", has(2, 1, 2))
	k = r.keysUntil("cookie", "the rest", phase("rest", 2))
	if due := k.GetDue().AsTime().Sub(k.GetSince().AsTime()); due != 24*time.Hour {
		t.Errorf("the former key goes after %s", due)
	}
	_, err = r.rotate(r.admin, "203.0.113.10")
	if connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(violations(t, err)[0], "keys of cookies of 203.0.113.10: : must wait until 20") {
		t.Errorf("a rotation during the rest: %v", err)
	}
	r.keysUntil("cid", "the rest", phase("rest", 2))
	if _, err := r.rotate(r.admin, "203.0.113.99"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("keys of nobody: %v", err)
	}
}

// TestKeysAreRotatedByAge: with a lifetime of 1 ns keys follow each other without end, and muxes
// have the keys that the host stamps with.
func TestKeysAreRotatedByAge(t *testing.T) {
	r := newRigOf(t, rig{keyRest: time.Nanosecond, keyLifetime: time.Nanosecond})
	r.apply(network(), hostNode(1), muxNode(1), carrying(1))
	mux, host := r.join("mux1", "mux"), r.join("host1", "host")
	seen := map[uint32][16]byte{}
	mux.until("the fourth key", func(p plan.Plan) bool {
		if len(p.Cookies) == 0 {
			return false
		}
		for _, k := range p.Cookies[0].Keys {
			if was, ok := seen[k.Epoch]; ok && was != k.Key {
				t.Fatalf("the key of epoch %d became another", k.Epoch)
			}
			seen[k.Epoch] = k.Key
		}
		return p.Cookies[0].Mint >= 4
	})
	host.until("the third key", func(p plan.Plan) bool { return len(p.Cookies) > 0 && p.Cookies[0].Mint >= 3 })
	for a, key := range seen {
		for b, other := range seen {
			if a != b && key == other {
				t.Errorf("epochs %d and %d have one key", a, b)
			}
		}
	}
	if k := r.keysUntil("cid", "steady", phase("steady", 1)); k.GetEpochs()[0].GetEpoch() != 1 || k.GetDue() != nil {
		t.Errorf("connection ids: %v: must not be rotated by age", k)
	}
}

// TestKeysFollowTheirService: keys are on nodes while an endpoint needs them. The same keys return
// when it needs them again. Another service that gets the VIP has others.
func TestKeysFollowTheirService(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), carrying(1))
	mux, host := r.join("mux1", "mux"), r.join("host1", "host")
	first := host.until("the first keys", has(1, 1)).Cookies[0].Keys[0]
	udp := carrying(1)
	udp.Endpoints[1].QUIC, udp.Endpoints[1].Affinity = nil, lb.AffinityFlow
	r.apply(udp)
	ids := mux.until("keys of connection ids that clients still send", func(p plan.Plan) bool {
		return len(p.Endpoints) == 2 && slices.ContainsFunc(p.Endpoints, func(e plan.Endpoint) bool { return e.QUIC != nil && e.FlowsFirst })
	})
	if len(ids.CIDs) != 1 {
		t.Errorf("connections with ids are left, and the mux has no keys of them: %v", ids.CIDs)
	}
	r.apply(web(1))
	host.until("no keys", func(p plan.Plan) bool { return len(p.Bindings) == 1 && len(p.Cookies) == 0 })
	faded := mux.until("keys of cookies that clients still echo", func(p plan.Plan) bool { return len(p.Endpoints) == 1 && len(p.CIDs) == 0 })
	if len(faded.Cookies) != 1 || !faded.Endpoints[0].FlowsFirst {
		t.Errorf("connections with cookies are left, and the mux has %v, endpoint %+v", faded.Cookies, faded.Endpoints[0])
	}
	for _, k := range r.keys() {
		if cookies := k.GetPurpose() == "cookie"; k.GetIdle() == cookies {
			t.Errorf("%v: idle %v, want %v", k, k.GetIdle(), !cookies)
		}
	}
	_, err := r.admin.RotateKeys(t.Context(), connect.NewRequest(&apiv1.RotateKeysRequest{Scopes: []string{"web"}, Purpose: "cid"}))
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("keys that no node needs: %v", err)
	}
	r.apply(carrying(1))
	if again := host.until("keys again", has(1, 1)).Cookies[0].Keys[0]; again != first {
		t.Error("keys that were needed again are others")
	}
	r.delete("Service", "web")
	if left := r.keys(); len(left) != 0 {
		t.Errorf("keys of a VIP that is gone: %v", left)
	}
	s := carrying(1)
	s.Name = "other"
	r.apply(s)
	if other := host.until("keys of another", has(1, 1)).Cookies[0].Keys[0]; other == first {
		t.Error("another service has the keys of the one before")
	}
}

// TestQUICConfig: servers get the keys that muxes read, and only their tenant does.
func TestQUICConfig(t *testing.T) {
	r := newRig(t, store.NewMemory())
	s := carrying(1, 2)
	s.VIPs = append(s.VIPs, netip.MustParseAddr("203.0.113.11"))
	s.Tenant = "shop"
	s.Endpoints = append(s.Endpoints, lb.Endpoint{Protocol: lb.UDP, QUIC: &lb.QUIC{Format: lb.QUICMsquic}, Port: 444, Backends: slices.Clone(s.Endpoints[0].Backends[:1])})
	lb.SetDefaults(s)
	r.apply(network(), hostNode(1), hostNode(2), muxNode(1), s, tenant("shop", 0), tenant("media", 0))
	mux := r.join("mux1", "mux")
	p := mux.until("keys", func(p plan.Plan) bool { return len(p.CIDs) == 2 })
	if p.CIDs[0].Keys[0] != p.CIDs[1].Keys[0] {
		t.Error("VIPs of one service have different keys: servers cannot tell VIPs apart")
	}
	ann, eve := r.bearer(r.access("ann", "tenant", "shop", 0).Token), r.bearer(r.access("eve", "tenant", "media", 0).Token)
	ask := func(c shuntv1connect.ManagerClient, service, backend string) ([]*apiv1.QUICServer, error) {
		res, err := c.QUICConfig(t.Context(), connect.NewRequest(&apiv1.QUICConfigRequest{Service: service, Backend: backend}))
		if err != nil {
			return nil, err
		}
		return res.Msg.GetServers(), nil
	}
	all, err := ask(ann, "web", "")
	if err != nil || len(all) != 6 {
		t.Fatalf("%d servers, %v: must be two backends at 443 and one at 444 of two VIPs", len(all), err)
	}
	for _, srv := range all {
		i := slices.IndexFunc(p.Endpoints, func(e plan.Endpoint) bool {
			return e.Key.VIP.String() == srv.GetVip() && lb.PortsText(e.Key.Port, 0) == srv.GetPort() && e.QUIC != nil
		})
		m := p.Endpoints[i].Members[slices.IndexFunc(p.Endpoints[i].Members, func(m plan.Member) bool { return m.DIP.String() == srv.GetDip() })]
		c := srv.GetConfigs()[0]
		if id := uint16(c.GetServerId()[0])<<4 | uint16(c.GetServerId()[1])>>4; id != m.ID || len(srv.GetConfigs()) != 1 || !c.GetActive() {
			t.Errorf("%v: member %d", srv, m.ID)
		}
		switch srv.GetPort() {
		case "443":
			if !bytes.Equal(c.GetKey(), p.CIDs[0].Keys[0].Key[:]) || c.GetId() != 1 || srv.GetCidLength() != 17 || c.GetNonceLength() != 13 || len(c.GetServerId()) != 3 || c.GetFormat() != "quiclb" {
				t.Errorf("%v", srv)
			}
		case "444":
			if len(c.GetKey()) != 0 || c.GetId() != 0 || srv.GetCidLength() != 14 || len(c.GetServerId()) != 4 {
				t.Errorf("%v", srv)
			}
		}
	}
	if one, err := ask(r.admin, "web", "10.20.2.11"); err != nil || len(one) != 2 || one[0].GetConfigs()[0].String() != one[1].GetConfigs()[0].String() {
		t.Errorf("one backend: %v, %v", one, err)
	}
	for name, c := range map[string]struct {
		client           shuntv1connect.ManagerClient
		service, backend string
		code             connect.Code
	}{
		"another tenant": {eve, "web", "", connect.CodeNotFound}, "no service": {eve, "nope", "", connect.CodeNotFound}, "nothing": {ann, "", "", connect.CodeInvalidArgument},
		"no backend": {ann, "web", "10.20.9.9", connect.CodeNotFound}, "no address": {ann, "web", "host1", connect.CodeInvalidArgument},
	} {
		if _, err := ask(c.client, c.service, c.backend); connect.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, none := ask(eve, "nope", "")
	_, others := ask(eve, "web", "")
	if strings.ReplaceAll(none.Error(), "nope", "web") != others.Error() {
		t.Errorf("tenants are told of others: %v, %v", none, others)
	}
	r.keysUntil("cid", "steady", phase("steady", 1))
	if _, err := r.rotate(eve, "203.0.113.10"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("another tenant rotates: %v", err)
	}
	if res, err := r.rotate(eve); err != nil || len(res.GetKeys()) != 0 {
		t.Errorf("another tenant rotates all: %v, %v", res, err)
	}
	if res, err := ann.RotateKeys(t.Context(), connect.NewRequest(&apiv1.RotateKeysRequest{Scopes: []string{"web"}, Purpose: "cid"})); err != nil || len(res.Msg.GetKeys()) != 1 {
		t.Fatalf("its own tenant: %v, %v", res, err)
	}
	r.keysUntil("cid", "the rest", phase("rest", 2))
	now, err := ask(ann, "web", "10.20.1.11")
	if err != nil {
		t.Fatal(err)
	}
	if c := now[0].GetConfigs(); len(c) != 2 || c[0].GetActive() || !c[1].GetActive() || c[1].GetId() != 2 {
		t.Errorf("after the rotation: %v", now[0])
	}
	secret, text := hex.EncodeToString(now[0].GetConfigs()[0].GetKey()), ""
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(text, "QUICConfig"); {
		audit, err := r.admin.Audit(t.Context(), connect.NewRequest(&apiv1.AuditRequest{}))
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the audit log does not have who got keys: %v, %s", err, text)
		}
		text = audit.Msg.String()
		<-time.After(10 * time.Millisecond)
	}
	if strings.Contains(text, secret) || !strings.Contains(text, "keys of connection ids of web rotated") {
		t.Errorf("the audit log: %s", text)
	}
}

// TestKeysSurviveARestore: a backup has the keys, sealed, and nodes have the same ones after it was
// restored.
func TestKeysSurviveARestore(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), carrying(1))
	mux, host := r.join("mux1", "mux"), r.join("host1", "host")
	first := mux.until("the first keys", has(1, 1)).Cookies[0].Keys[0]
	host.until("the first keys", has(1, 1))
	r.keysUntil("cookie", "steady", phase("steady", 1))
	if _, err := r.rotate(r.admin, "web"); err != nil {
		t.Fatal(err)
	}
	r.keysUntil("cookie", "the rest", phase("rest", 2))
	a := r.backup()
	for _, k := range a.Keys {
		if bytes.Contains(k.Value, first.Key[:]) {
			t.Errorf("key %s has a key in clear", k.Name)
		}
	}
	r.restore(a)
	got := mux.until("the keys of before", func(p plan.Plan) bool { return has(2, 1, 2)(p) && p.Epoch > 1 })
	if got.Cookies[0].Keys[0] != first {
		t.Error("the first key became another")
	}
	if k := r.keysUntil("cookie", "the rest", phase("rest", 2)); len(k.GetEpochs()) != 2 {
		t.Errorf("after the restore: %v", k)
	}
}
