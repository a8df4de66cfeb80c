package manager_test

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/mux"
	"github.com/shuntlb/shunt/internal/snat"
)

// leasingMux is the lease part of a mux, on a stream.
type leasingMux struct {
	tables *dataplane.FakeMuxSNAT
	leases *mux.Leases
	mu     sync.Mutex
	// numb: it answers no requests.
	numb bool
}

func newLeasingMux(t *testing.T, s *rawStream) *leasingMux {
	m := &leasingMux{tables: &dataplane.FakeMuxSNAT{}}
	m.leases = mux.NewLeases(m.tables, clock.System{})
	m.leases.Begin()
	go func() {
		for {
			up, err := s.Receive()
			if err != nil {
				return
			}
			var r apiv1.NodeReport
			m.mu.Lock()
			numb := m.numb
			m.mu.Unlock()
			switch q := up.GetSnatWords(); {
			case q != nil && !numb:
				r.SnatWords = &apiv1.SnatWordsReply{Id: q.GetId(), Result: m.leases.Words(q)}
			case up.GetSnatLeases() != nil:
				if err := m.leases.Hear(up); err != nil {
					t.Error(err)
					return
				}
				m.leases.Say(&r)
			default:
				continue
			}
			if s.Send(&r) != nil {
				return
			}
		}
	}()
	return m
}

// TestAuditFindsWhatDiffers: the audit covers every mux, at any member. It finds a range that is
// unleased at the mux, or leased to another server, and a mux that does not answer.
func TestAuditFindsWhatDiffers(t *testing.T) {
	ms := newMembers(t, 2, nil)
	lead := ms.leader(1)
	lead.apply(network(), hostNode(1), hostNode(2), muxNode(1), muxNode(2), snatWeb(1, 2))
	one, two := newLeasingMux(t, ms.rigs[0].raw("mux1", "mux")), newLeasingMux(t, ms.rigs[1].raw("mux2", "mux"))
	host := ms.rigs[1].raw("host1", "host")
	holder := &apiv1.SnatHolder{Vip: "203.0.113.10", Dip: "10.20.1.11"}
	for receive(t, host).GetSnatHolders() == nil {
		continue
	}
	if err := host.Send(&apiv1.NodeReport{SnatAsks: []*apiv1.SnatAsk{{Holder: holder, Want: 3}}}); err != nil {
		t.Fatal(err)
	}
	answer(t, host, granted)
	audit := func(service string) map[string]*apiv1.SnatNodeAudit {
		t.Helper()
		res, err := ms.rigs[1].admin.AuditSNAT(t.Context(), connect.NewRequest(&apiv1.AuditSNATRequest{Service: service}))
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]*apiv1.SnatNodeAudit{}
		for _, n := range res.Msg.GetNodes() {
			out[n.GetNode()] = n
		}
		return out
	}
	// The host's stream is a raw one, which answers nothing. The leader receives the state of
	// another member's mux soon.
	got := audit("web")
	for deadline := time.After(30 * time.Second); got["mux1"].GetRanges() != 3 || got["mux2"].GetRanges() != 3; got = audit("web") {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("muxes say %v", got)
		}
	}
	for _, name := range []string{"mux1", "mux2"} {
		if n := got[name]; n.GetError() != "" || n.GetVips() != 1 || n.GetRanges() != 3 || n.GetDifferent() != 0 || n.GetMoving() != 0 || n.GetRevision() == 0 {
			t.Errorf("%s: %v, want 3 ranges that are the same", name, n)
		}
	}
	if n := got["host1"]; n.GetError() == "" || n.GetRole() != "host" {
		t.Errorf("host1: %v, want an error: it does not answer", n)
	}
	vip := snat.VIP{Addr: netip.MustParseAddr("203.0.113.10")}
	dips, _, _ := one.tables.SNATWords(vip)
	other := uint16(1) // the member that is not 10.20.1.11
	if dips[0].String() == holder.GetDip() {
		other = 2
	}
	if err := one.tables.ChangeSNAT(vip, []dataplane.SNATWord{{Range: snat.FirstRange}, {Range: snat.FirstRange + 1, Word: other}, {Range: 500, Word: other}}); err != nil {
		t.Fatal(err)
	}
	got = audit("")
	n := got["mux1"]
	if n.GetDifferent() != 3 || len(n.GetDifferences()) != 3 {
		t.Fatalf("mux1: %v, want three differences", n)
	}
	for i, want := range []struct {
		port         uint32
		stored, said string
	}{{1024, "10.20.1.11", ""}, {1032, "10.20.1.11", "10.20.2.11"}, {4000, "", "10.20.2.11"}} {
		if d := n.GetDifferences()[i]; d.GetPort() != want.port || d.GetStored() != want.stored || d.GetSaid() != want.said || d.GetVip() != "203.0.113.10" {
			t.Errorf("difference %d: %v, want %v", i, d, want)
		}
	}
	if n := got["mux2"]; n.GetDifferent() != 0 || n.GetRanges() != 3 {
		t.Errorf("mux2: %v", n)
	}
	two.mu.Lock()
	two.numb = true
	two.mu.Unlock()
	if n := audit("web")["mux2"]; n.GetError() == "" {
		t.Errorf("mux2, which answers no questions: %v, want an error", n)
	}
	if _, err := ms.rigs[0].admin.AuditSNAT(t.Context(), connect.NewRequest(&apiv1.AuditSNATRequest{Service: "none"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("of a service that there is not: %v", err)
	}
	if n := len(audit("web")); n != 3 {
		t.Errorf("%d nodes, want two muxes and the one host that is connected", n)
	}
}

// TestSNATIsSeen: the leader's status has the usage of VIPs, the limits and the counters. Grants
// are timed.
func TestSNATIsSeen(t *testing.T) {
	r := newRig(t, nil)
	r.apply(network(), hostNode(1), snatWeb(1))
	host := r.raw("host1", "host")
	for receive(t, host).GetSnatHolders() == nil {
		continue
	}
	if err := host.Send(&apiv1.NodeReport{SnatAsks: []*apiv1.SnatAsk{{Holder: &apiv1.SnatHolder{Vip: "203.0.113.10", Dip: "10.20.1.11"}, Want: 2}}}); err != nil {
		t.Fatal(err)
	}
	answer(t, host, granted)
	deadline := time.After(30 * time.Second)
	for {
		res, err := r.admin.Status(t.Context(), connect.NewRequest(&apiv1.StatusRequest{SnatOf: "web"}))
		if err != nil {
			t.Fatal(err)
		}
		c, vips := res.Msg.GetSnatCounts(), res.Msg.GetSnatVips()
		if len(vips) == 1 && c.GetGrants() == 1 {
			v := vips[0]
			if v.GetService() != "web" || v.GetVip() != "203.0.113.10" || v.GetLeased() != 16 || v.GetFree()+v.GetLeased() != 65536-1024 || v.GetDipLimit() != 1024 || v.GetTenantLeased() != 16 || v.GetTenantLimit() != 0 {
				t.Errorf("%v", v)
			}
			if c.GetAsks() != 1 || c.GetGranted() != 2 || c.GetQueued() != 0 || len(c.GetRefused()) != 3 {
				t.Errorf("%v", c)
			}
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("status: %v", res.Msg)
		}
	}
}
