package manager_test

import (
	"net/netip"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/convert"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/manager"
	muxagent "github.com/shuntlb/shunt/internal/mux"
	"github.com/shuntlb/shunt/internal/snat"
	"github.com/shuntlb/shunt/internal/store"
)

// snatWeb is web with SNAT for the servers of all its hosts.
func snatWeb(hosts ...int) *lb.Service {
	s := web(hosts...)
	for _, h := range hosts {
		s.SNAT = append(s.SNAT, lb.SNATServer{DIP: backend(h).DIPs[0]})
	}
	return s
}

// leased holds the leases of a raw mux. It folds them as the mux agent does.
type leased struct {
	t    *testing.T
	s    *rawStream
	book *snat.Book
	vips []*apiv1.SnatVIP
	rev  int64
}

// next applies one message of leases.
func (l *leased) next() {
	l.t.Helper()
	for {
		in := receive(l.t, l.s).GetSnatLeases()
		if in == nil {
			continue
		}
		if in.GetSnapshot() {
			l.book = snat.NewBook()
		}
		for _, raw := range in.GetPages() {
			p, err := snat.UnpackPage(raw)
			if err != nil {
				l.t.Fatal(err)
			}
			l.book.Load(p)
		}
		for _, raw := range in.GetBatches() {
			var b snat.Batch
			if err := b.Unpack(raw); err != nil {
				l.t.Fatal(err)
			}
			if err := l.book.Fold(&b, len(raw)); err != nil {
				l.t.Fatal(err)
			}
		}
		if in.GetConfigured() {
			l.vips = in.GetVips()
		}
		l.rev = in.GetRevision()
		return
	}
}

func (l *leased) ack() {
	l.t.Helper()
	if err := l.s.Send(&apiv1.NodeReport{SnatAck: &apiv1.SnatAck{Revision: l.rev}}); err != nil {
		l.t.Fatal(err)
	}
}

// has waits until the DIP has a range of the VIP, and acknowledges everything.
func (l *leased) has(r uint32, dip string) {
	l.t.Helper()
	want := netip.Addr{}
	if dip != "" {
		want = netip.MustParseAddr(dip)
	}
	for {
		if p := l.book.Page(snat.VIP{Addr: netip.MustParseAddr("203.0.113.10")}); p != nil {
			if got, _ := p.DIP(snat.Range(r)); got == want {
				return
			}
		}
		l.next()
		l.ack()
	}
}

// answer waits for an answer of the kind for a host.
func answer(t *testing.T, s *rawStream, fits func(*apiv1.SnatAnswer) bool) *apiv1.SnatAnswer {
	t.Helper()
	for {
		for _, a := range receive(t, s).GetSnatAnswers().GetAnswers() {
			if fits(a) {
				return a
			}
		}
	}
}

func granted(a *apiv1.SnatAnswer) bool { return len(a.GetGrant().GetRanges()) > 0 }

// TestRangesAreLeased: a host at one follower requests a range, and a mux at another follower must
// have the lease before the host does. The lease survives changes of the leader. Muxes drop ranges
// that were returned, or whose DIP was removed.
func TestRangesAreLeased(t *testing.T) {
	ms := newMembers(t, 3, nil)
	lead := ms.leader(1)
	lead.apply(network(), hostNode(1), hostNode(2), muxNode(1), snatWeb(1, 2))
	mux := &leased{t: t, s: ms.rigs[1].raw("mux1", "mux"), book: snat.NewBook()}
	host := ms.rigs[2].raw("host1", "host")
	holders := func() []*apiv1.SnatHolder {
		for {
			if h := receive(t, host).GetSnatHolders(); h != nil {
				return h.GetHolders()
			}
		}
	}()
	if len(holders) != 1 || holders[0].GetDip() != "10.20.1.11" || holders[0].GetVip() != "203.0.113.10" {
		t.Fatalf("holders at host1: %v", holders)
	}
	mux.next()
	if len(mux.vips) != 1 || len(mux.vips[0].GetDips()) != 2 {
		t.Fatalf("VIPs with SNAT: %v", mux.vips)
	}
	mux.ack()
	ask := func(a *apiv1.SnatAsk) {
		a.Holder = holders[0]
		if err := host.Send(&apiv1.NodeReport{SnatAsks: []*apiv1.SnatAsk{a}}); err != nil {
			t.Fatal(err)
		}
	}
	ask(&apiv1.SnatAsk{Want: 1})
	grant := make(chan *apiv1.SnatAnswer, 1)
	go func() { grant <- answer(t, host, granted) }()
	mux.has(snat.FirstRange, "10.20.1.11")
	first := (<-grant).GetGrant()
	if first.GetRanges()[0] != snat.FirstRange || len(first.GetRanges()) != snat.DefaultRules.First {
		t.Fatalf("granted %v", first)
	}
	for {
		res, err := ms.rigs[2].admin.Status(t.Context(), connect.NewRequest(&apiv1.StatusRequest{SnatOf: "web"}))
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Msg.GetSnat(); len(got) == 2 && len(got[0].GetPorts()) == 2 && got[0].GetPorts()[0] == 1024 && got[0].GetDip() == "10.20.1.11" && len(got[1].GetPorts()) == 0 {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	// A foreign DIP, and another host's DIP, get nothing: the next answer belongs to the request
	// after them.
	stranger := &apiv1.SnatHolder{Vip: "203.0.113.10", Dip: "10.20.2.11"}
	if err := host.Send(&apiv1.NodeReport{SnatAsks: []*apiv1.SnatAsk{{Holder: stranger, Want: 1}}}); err != nil {
		t.Fatal(err)
	}
	ms.lapse()
	ms.leader(2)
	// Answers are lost while leaders change. The host repeats the request until it receives an
	// answer.
	var all *apiv1.SnatGrant
	got := make(chan *apiv1.SnatAnswer, 1)
	go func() { got <- answer(t, host, func(a *apiv1.SnatAnswer) bool { return a.GetGrant().GetAll() }) }()
	for all == nil {
		ask(&apiv1.SnatAsk{Sync: true})
		select {
		case a := <-got:
			all = a.GetGrant()
		case <-time.After(20 * time.Millisecond):
		}
	}
	if len(all.GetRanges()) != len(first.GetRanges()) || all.GetHolder().GetDip() != "10.20.1.11" {
		t.Fatalf("under another leader the host has %v", all)
	}
	// Returns are lost, too. The host repeats the return of an idle range until it is accepted.
	var taken *apiv1.SnatRevoke
	revoked := make(chan *apiv1.SnatAnswer, 1)
	go func() { revoked <- answer(t, host, func(a *apiv1.SnatAnswer) bool { return a.GetRevoke() != nil }) }()
	for taken == nil {
		if err := host.Send(&apiv1.NodeReport{SnatReturns: []*apiv1.SnatReturn{{Holder: holders[0], Ranges: []uint32{snat.FirstRange}}}}); err != nil {
			t.Fatal(err)
		}
		select {
		case a := <-revoked:
			taken = a.GetRevoke()
		case <-time.After(20 * time.Millisecond):
		}
	}
	if len(taken.GetRanges()) != 1 || taken.GetRanges()[0] != snat.FirstRange || taken.GetLeave() {
		t.Fatalf("taken: %v", taken)
	}
	mux.has(snat.FirstRange, "")
	mux.has(snat.FirstRange+1, "10.20.1.11")
	svc := snatWeb(1, 2)
	svc.SNAT = svc.SNAT[1:]
	ms.leader(2).apply(svc)
	mux.has(snat.FirstRange+1, "")
	// A mux that starts receives all leases, at any member.
	fresh := &leased{t: t, s: ms.rigs[0].raw("mux1", "mux"), book: snat.NewBook()}
	fresh.next()
	if fresh.rev < mux.rev || fresh.book.Leased() != 0 {
		t.Fatalf("a mux that starts has %d leases of revision %d, want none of %d", fresh.book.Leased(), fresh.rev, mux.rev)
	}
}

// snatService is a service of one server, with SNAT by its own VIP.
func snatService(name string, vip string, host int) *lb.Service {
	s := snatWeb(host)
	s.Name, s.VIPs = name, []netip.Addr{netip.MustParseAddr(vip)}
	dip := netip.MustParseAddr(vip).As4()
	s.Endpoints[0].Backends[0].DIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 20, byte(host), dip[3]})}
	s.SNAT = []lb.SNATServer{{DIP: s.Endpoints[0].Backends[0].DIPs[0]}}
	lb.SetDefaults(s)
	return s
}

// TestSNATBeyondRoomIsRefused: apply refuses SNAT beyond the free table space that muxes report.
// Existing SNAT stays, and other changes are accepted.
func TestSNATBeyondRoomIsRefused(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), muxNode(2), snatService("a", "203.0.113.21", 1))
	for mux, size := range map[string]uint64{"mux1": 8, "mux2": 2} {
		n := r.join(mux, "mux")
		n.mu.Lock()
		n.status = func() *apiv1.NodeStatus {
			return &apiv1.NodeStatus{Tables: []*apiv1.TableStatus{{Name: "snat_vips", Used: 1, Capacity: size}}}
		}
		n.mu.Unlock()
		r.status(mux, func(st *apiv1.NodeStatus) bool { return len(st.GetTables()) == 1 })
	}
	apply := func(dry bool, objs ...lb.Object) error {
		req := &apiv1.ApplyRequest{DryRun: dry}
		for _, o := range objs {
			req.Objects = append(req.Objects, convert.ToObject(o))
		}
		_, err := r.admin.Apply(t.Context(), connect.NewRequest(req))
		return err
	}
	b, c := snatService("b", "203.0.113.22", 1), snatService("c", "203.0.113.23", 1)
	want := "services/c: snat: 203.0.113.23: must fit into the tables of the muxes that serve it: mux2 has room for 2 VIPs with snat, and as many are there (shunt mux --max-snat-vips)"
	for _, dry := range []bool{true, false} {
		err := apply(dry, b, c)
		if err == nil {
			t.Fatalf("dry %v: a third VIP with SNAT is taken", dry)
		}
		if got := violations(t, err); connect.CodeOf(err) != connect.CodeInvalidArgument || len(got) != 1 || got[0] != want {
			t.Errorf("dry %v: %v: got %q, want %q", dry, err, got, want)
		}
	}
	if err := apply(false, b); err != nil {
		t.Fatalf("the second VIP with SNAT: %v", err)
	}
	b.Endpoints[0].Backends[0].Weight = 7
	if err := apply(false, b); err != nil {
		t.Errorf("another change of one that is there: %v", err)
	}
	plain := snatService("c", "203.0.113.23", 1)
	plain.SNAT = nil
	if err := apply(false, plain); err != nil {
		t.Errorf("a service without SNAT: %v", err)
	}
	b.SNAT = nil
	if err := apply(false, b, c); err != nil {
		t.Errorf("one in the place of another: %v", err)
	}
}

// TestMuxGetsSNATOfItsVIPs: a mux receives the VIPs that it serves by placement, the oldest
// services first.
func TestMuxGetsSNATOfItsVIPs(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), muxNode(2))
	r.apply(snatService("z", "203.0.113.29", 1))
	r.apply(snatService("a", "203.0.113.21", 1))
	placed := snatService("p", "203.0.113.25", 1)
	placed.Placement = &lb.Placement{Replicas: 1}
	lb.SetDefaults(placed)
	r.apply(placed)
	got := map[string]int{}
	for _, name := range []string{"mux1", "mux2"} {
		mux := &leased{t: t, s: r.raw(name, "mux"), book: snat.NewBook()}
		mux.next()
		var order []string
		for _, v := range mux.vips {
			got[v.GetService()]++
			order = append(order, v.GetService())
		}
		if len(order) < 2 || order[0] != "z" || order[1] != "a" {
			t.Errorf("%s gets VIPs with SNAT in the order %v, want z, a first", name, order)
		}
	}
	if got["z"] != 2 || got["a"] != 2 || got["p"] != 1 {
		t.Errorf("muxes that have each VIP with SNAT: %v, want 2, 2 and 1 of p", got)
	}
}

// TestOneVIPOfAServiceHasSNAT: it is the lowest IPv4 VIP, which hosts use for sending. Ports of
// other VIPs would be leased and never used.
func TestOneVIPOfAServiceHasSNAT(t *testing.T) {
	r := newRig(t, store.NewMemory())
	s := snatWeb(1)
	s.VIPs = []netip.Addr{netip.MustParseAddr("203.0.113.52"), netip.MustParseAddr("203.0.113.51")}
	r.apply(network(), hostNode(1), muxNode(1), s)
	mux := &leased{t: t, s: r.raw("mux1", "mux"), book: snat.NewBook()}
	mux.next()
	if len(mux.vips) != 1 || mux.vips[0].GetVip() != "203.0.113.51" {
		t.Errorf("VIPs with SNAT: %v, want 203.0.113.51 alone", mux.vips)
	}
}

// TestServiceWithoutEndpoints: its VIP is in the plan of muxes, its servers' hosts are allowed to
// request ports, and the ports are leased.
func TestServiceWithoutEndpoints(t *testing.T) {
	r := newRig(t, store.NewMemory())
	dip, host := backend(1).DIPs[0], backend(1).Host
	out := &lb.Service{Name: "out", VIPs: []netip.Addr{netip.MustParseAddr("203.0.113.10")}, SNAT: []lb.SNATServer{{DIP: dip, Host: host}}}
	lb.SetDefaults(out)
	r.apply(network(), hostNode(1), muxNode(1), out)
	mux := &leased{t: t, s: r.raw("mux1", "mux"), book: snat.NewBook()}
	for planned := false; !planned || mux.vips == nil; {
		in := receive(t, mux.s)
		for _, item := range in.GetUpsert() {
			if s := item.GetService(); s.GetName() == "out" {
				if planned = true; !s.GetOutbound() || len(s.GetVip()) != 1 {
					t.Errorf("the mux's plan has %v", s)
				}
			}
		}
		if l := in.GetSnatLeases(); l.GetConfigured() {
			mux.vips, mux.rev = l.GetVips(), l.GetRevision()
		}
	}
	if len(mux.vips) != 1 || len(mux.vips[0].GetDips()) != 1 || mux.vips[0].GetDips()[0].GetOuter() != lb.Outer(dip, host).String() {
		t.Fatalf("VIPs with SNAT: %v", mux.vips)
	}
	mux.ack()
	agent := r.raw("host1", "host")
	var holder *apiv1.SnatHolder
	for holder == nil {
		if h := receive(t, agent).GetSnatHolders().GetHolders(); len(h) > 0 {
			holder = h[0]
		}
	}
	if err := agent.Send(&apiv1.NodeReport{SnatAsks: []*apiv1.SnatAsk{{Holder: holder, Want: 1}}}); err != nil {
		t.Fatal(err)
	}
	grant := make(chan *apiv1.SnatAnswer, 1)
	go func() { grant <- answer(t, agent, granted) }()
	mux.has(snat.FirstRange, dip.String())
	if got := (<-grant).GetGrant().GetRanges(); len(got) == 0 || got[0] != snat.FirstRange {
		t.Errorf("granted %v", got)
	}
}

// TestSNATTimesOfNetworks: hosts receive the idle time of their servers' ports, also when the
// Network changes, and the allocator receives the quarantine.
func TestSNATTimesOfNetworks(t *testing.T) {
	r := newRig(t, store.NewMemory())
	r.apply(network(), hostNode(1), muxNode(1), snatWeb(1))
	agent := r.raw("host1", "host")
	idle := func() time.Duration {
		for {
			if h := receive(t, agent).GetSnatHolders().GetHolders(); len(h) == 1 {
				return h[0].GetIdle().AsDuration()
			}
		}
	}
	if got := idle(); got != lb.DefaultSNATTimes.Idle {
		t.Errorf("idle %v, want the default %v", got, lb.DefaultSNATTimes.Idle)
	}
	n := network()
	n.SNAT = lb.SNATTimes{Idle: time.Hour, Quarantine: time.Minute}
	r.apply(n)
	if got := idle(); got != time.Hour {
		t.Errorf("idle %v, want 1h", got)
	}
}

// TestSNATTimesFitTogether: defaults and bounds of the objects equal those of the code that uses
// them, and no quarantine is so short that a mux may still use leases from before it.
func TestSNATTimesFitTogether(t *testing.T) {
	if lb.DefaultSNATTimes != (lb.SNATTimes{Idle: snat.DefaultStockRules.Idle, Quarantine: snat.DefaultRules.Quarantine}) {
		t.Errorf("defaults %+v", lb.DefaultSNATTimes)
	}
	if lb.MaxSNATQuarantine != snat.MaxQuarantine || snat.RestKept < 3*lb.MaxSNATQuarantine {
		t.Errorf("the longest quarantine is %v, pages remember %v", lb.MaxSNATQuarantine, snat.RestKept)
	}
	if confirmed := manager.SNATConfirmedFor + muxagent.DefaultLeaseFor; 2*confirmed > lb.MinSNATQuarantine {
		t.Errorf("muxes may take leases for the newest for %v after they are not, and the least quarantine is %v", confirmed, lb.MinSNATQuarantine)
	}
}

// TestLoweredQuotaReachesHosts: the host of a server that has more ports than its tenant's quota
// receives the number of ranges that it may keep.
func TestLoweredQuotaReachesHosts(t *testing.T) {
	r := newRig(t, store.NewMemory())
	svc := snatWeb(1)
	shop := &lb.Tenant{Name: svc.Tenant}
	lb.SetDefaults(shop)
	r.apply(network(), hostNode(1), muxNode(1), shop, svc)
	mux := &leased{t: t, s: r.raw("mux1", "mux"), book: snat.NewBook()}
	mux.next()
	mux.ack()
	agent := r.raw("host1", "host")
	var holder *apiv1.SnatHolder
	for holder == nil {
		if h := receive(t, agent).GetSnatHolders().GetHolders(); len(h) > 0 {
			holder = h[0]
		}
	}
	if err := agent.Send(&apiv1.NodeReport{SnatAsks: []*apiv1.SnatAsk{{Holder: holder, Want: 8}}}); err != nil {
		t.Fatal(err)
	}
	grant := make(chan *apiv1.SnatAnswer, 1)
	go func() { grant <- answer(t, agent, granted) }()
	mux.has(snat.FirstRange+7, holder.GetDip())
	if got := (<-grant).GetGrant().GetRanges(); len(got) != 8 {
		t.Fatalf("granted %v", got)
	}
	release := func(q *apiv1.ReleaseSNATRequest) ([]*apiv1.ReleasedSNAT, error) {
		res, err := r.admin.ReleaseSNAT(t.Context(), connect.NewRequest(q))
		if err != nil {
			return nil, err
		}
		return res.Msg.GetReleased(), nil
	}
	for _, q := range []*apiv1.ReleaseSNATRequest{{Service: "none"}, {Service: svc.Name, Keep: 7}, {Service: svc.Name, Dip: "10.9.9.9"}, {Service: svc.Name, Dip: "x"}} {
		if got, err := release(q); err == nil {
			t.Errorf("release %v: %v", q, got)
		}
	}
	got, err := release(&apiv1.ReleaseSNATRequest{Service: svc.Name, Keep: 6 * snat.RangePorts})
	if err != nil || len(got) != 1 || got[0].GetDip() != holder.GetDip() || got[0].GetPorts() != 2*snat.RangePorts {
		t.Errorf("released %v, %v", got, err)
	}
	revoked := func(a *apiv1.SnatAnswer) bool { return a.GetRevoke() != nil }
	if rev := answer(t, agent, revoked).GetRevoke(); rev.Keep == nil || rev.GetKeep() != 6 {
		t.Errorf("the host hears %v, want that it may keep 6 ranges", rev)
	}
	if got, err = release(&apiv1.ReleaseSNATRequest{Service: svc.Name, Dip: holder.GetDip(), Keep: 5 * snat.RangePorts, Force: true}); err != nil || len(got) != 1 || got[0].GetPorts() != 3*snat.RangePorts {
		t.Errorf("released %v, %v", got, err)
	}
	if rev := answer(t, agent, revoked).GetRevoke(); rev.GetLeave() || len(rev.GetRanges()) != 3 {
		t.Errorf("the host hears %v, want that three ranges are taken", rev)
	}
	lower := *shop
	lower.Quotas.SNATPorts = 3 * snat.RangePorts
	r.apply(&lower)
	a := answer(t, agent, revoked)
	if rev := a.GetRevoke(); rev.Keep == nil || rev.GetKeep() != 3 || len(rev.GetRanges()) > 0 || rev.GetHolder().GetDip() != holder.GetDip() {
		t.Errorf("the host hears %v, want that it may keep 3 ranges", rev)
	}
}
