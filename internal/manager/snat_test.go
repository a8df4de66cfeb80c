package manager_test

import (
	"net/netip"
	"testing"
	"time"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/snat"
)

// snatWeb is web with SNAT for the servers of all its hosts.
func snatWeb(hosts ...int) *lb.Service {
	s := web(hosts...)
	for _, h := range hosts {
		s.SNAT = append(s.SNAT, backend(h).DIPs[0])
	}
	return s
}

// leased is what a raw mux knows of leases: it folds them as the mux agent does.
type leased struct {
	t    *testing.T
	s    *rawStream
	book *snat.Book
	vips []*apiv1.SnatVIP
	rev  int64
}

// next takes in one message of leases.
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

// has waits until a range of the VIP is the DIP's, acknowledging everything.
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

// answers waits for an answer of the kind for a host.
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

// TestRangesAreLeased: a host at a follower asks, a mux at another one must have the lease before the host has it; the lease outlives
// leaders; what is given back, or was of a DIP that is gone, goes from muxes.
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
	// A stranger, and another host's DIP, get nothing: the next answer is that to the ask after them.
	stranger := &apiv1.SnatHolder{Vip: "203.0.113.10", Dip: "10.20.2.11"}
	if err := host.Send(&apiv1.NodeReport{SnatAsks: []*apiv1.SnatAsk{{Holder: stranger, Want: 1}}}); err != nil {
		t.Fatal(err)
	}
	ms.lapse()
	ms.leader(2)
	// Answers are lost while leaders change; the host asks until it hears.
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
	// So are returns, and what is idle is returned until it is taken.
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
	// A mux that starts gets what there is, at any member.
	fresh := &leased{t: t, s: ms.rigs[0].raw("mux1", "mux"), book: snat.NewBook()}
	fresh.next()
	if fresh.rev < mux.rev || fresh.book.Leased() != 0 {
		t.Fatalf("a mux that starts has %d leases of revision %d, want none of %d", fresh.book.Leased(), fresh.rev, mux.rev)
	}
}
