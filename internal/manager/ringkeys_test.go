package manager_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/ring"
	"github.com/shuntlb/shunt/internal/store"
)

func (r *rig) rotateRing(force bool, scopes ...string) (*apiv1.RotateRingResponse, error) {
	res, err := r.admin.RotateRing(r.t.Context(), connect.NewRequest(&apiv1.RotateRingRequest{Scopes: scopes, All: len(scopes) == 0, Force: force}))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// tweaks returns the ring tweaks of a mux's plan, by VIP.
func tweaks(p plan.Plan) map[string]uint64 {
	out := map[string]uint64{}
	for i := range p.Endpoints {
		out[p.Endpoints[i].Key.VIP.String()] = p.Endpoints[i].RingTweak
	}
	return out
}

// TestRingKeys: VIPs have ring keys of their own, which are replaced one by one. A host has only
// that of its VIP.
func TestRingKeys(t *testing.T) {
	memory := store.NewMemory()
	r := newRig(t, memory)
	mux, host := r.join("mux1", "mux"), r.join("host1", "host")
	r.apply(network(), muxNode(1), hostNode(1), hostNode(2))
	repaired := func(hosts ...int) *lb.Service {
		s := web(hosts...)
		s.Endpoints[0].RepairWindow = new(time.Hour)
		return s
	}
	other := web(2)
	other.Name, other.VIPs = "api", []netip.Addr{netip.MustParseAddr("203.0.113.11")}
	r.apply(repaired(1, 2), other)
	p := mux.until("both services", func(p plan.Plan) bool { return len(p.Endpoints) == 2 })
	first := tweaks(p)
	if first["203.0.113.10"] == 0 || first["203.0.113.11"] == 0 || first["203.0.113.10"] == first["203.0.113.11"] || len(p.RingKeys) != 1 {
		t.Fatalf("tweaks %v, %d keys", first, len(p.RingKeys))
	}
	// A change of backends moves no other flows, and lets the host repair with the whole key of its
	// VIP.
	r.apply(repaired(1))
	p = mux.until("the change", func(p plan.Plan) bool { return tweaks(p)["203.0.113.10"] != 0 && len(p.Endpoints[0].Members) == 1 })
	if got := tweaks(p); got["203.0.113.10"] != first["203.0.113.10"] || got["203.0.113.11"] != first["203.0.113.11"] {
		t.Errorf("a change of backends replaced a ring key: %v, was %v", got, first)
	}
	hp := host.until("the repair", func(p plan.Plan) bool { return len(p.Repairs) == 1 })
	own, base := ring.KeyOf(hp.Repairs[0].Hash.Key), ring.KeyOf(p.RingKeys[0].Key)
	if own != base.Tweaked(first["203.0.113.10"]) {
		t.Error("the host repairs with another key than muxes hash with")
	}
	var k0 [8]byte
	binary.LittleEndian.PutUint64(k0[:], base.K0)
	if len(hp.RingKeys) != 0 || bytes.Contains(hp.Repairs[0].Hash.Key[:], k0[:]) {
		t.Error("the host has the cluster's key")
	}
	// A rotation for one VIP does not change the other.
	res, err := r.rotateRing(false, "203.0.113.10")
	if err != nil || res.GetEndpoints() != 1 {
		t.Fatalf("rotation: %v %v", res, err)
	}
	p = mux.until("the new key", func(p plan.Plan) bool { return p.Revision >= res.GetRevision() })
	second := tweaks(p)
	if second["203.0.113.10"] == first["203.0.113.10"] || second["203.0.113.10"] == 0 || second["203.0.113.11"] != first["203.0.113.11"] {
		t.Errorf("tweaks after the rotation: %v, were %v", second, first)
	}
	// Another leader keeps it.
	r.stop()
	r.start()
	p = mux.until("the next epoch", func(p plan.Plan) bool { return p.Epoch > 1 && len(p.Endpoints) == 2 })
	if got := tweaks(p); got["203.0.113.10"] != second["203.0.113.10"] || got["203.0.113.11"] != second["203.0.113.11"] {
		t.Errorf("another leader gave other keys: %v, were %v", got, second)
	}
	// Endpoints without a flow table need a confirmation.
	other.Endpoints[0].Affinity, other.Endpoints[0].Idle = lb.AffinityHash, lb.Idle{}
	r.apply(other)
	if _, err := r.rotateRing(false); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "api: ") {
		t.Errorf("connections were broken without being asked: %v", err)
	}
	// Hosts send connections to their previous backends for the window after it, if nothing else
	// changed within it.
	other.Endpoints[0].RepairWindow = new(time.Hour)
	r.apply(other)
	if res, err := r.rotateRing(false, "api"); err != nil || len(res.GetMoved()) != 0 {
		t.Errorf("rotation with repair: %v, %v", res, err)
	}
	if _, err := r.rotateRing(false, "api"); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("a second rotation within the window: %v", err)
	}
	old := r.raw("mux2", "mux")
	r.apply(muxNode(2))
	if err := old.Send(&apiv1.NodeReport{Status: &apiv1.NodeStatus{Error: "old"}}); err != nil {
		t.Fatal(err)
	}
	r.status("mux2", func(st *apiv1.NodeStatus) bool { return st.GetError() == "old" })
	if _, err := r.rotateRing(true); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "mux2") {
		t.Errorf("with a mux that goes on with the cluster's key: %v", err)
	}
	r.delete("Node", "mux2")
	res, err = r.rotateRing(true)
	if err != nil || len(res.GetMoved()) != 1 || res.GetEndpoints() != 2 {
		t.Errorf("confirmed rotation: %v %v", res, err)
	}
	if _, err := r.rotateRing(true, "nobody"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("rotation of no service: %v", err)
	}
	var out []string
	kept, err := memory.List(t.Context(), "/shunt/keys/ring/")
	for _, kv := range kept.KVs {
		out = append(out, strings.TrimPrefix(kv.Key, "/shunt/keys/ring/"))
	}
	// 2 and 3 are in the history of web, 4 in that of api.
	if want := []string{"1", "2", "3", "4", "5"}; err != nil || !slices.Equal(out, want) {
		t.Errorf("ring keys in the store: %v, want %v", out, want)
	}
}
