package mux

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/snat"
)

// TestLeasesReachTheTables: whatever comes in whatever order of snapshots, changes and DIPs, the tables say of every range who the
// book says has it.
func TestLeasesReachTheTables(t *testing.T) {
	vip := snat.VIP{Addr: netip.MustParseAddr("203.0.113.10")}
	dip := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 20, 1, byte(11 + i)}) }
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		tables, now := &dataplane.FakeMuxSNAT{}, clock.NewFake(time.Unix(1_700_000_000, 0))
		l := NewLeases(tables, now)
		book := snat.NewBook() // the manager's
		has := [5]bool{true, true, true}
		config := func() []*apiv1.SnatVIP {
			v := &apiv1.SnatVIP{Vip: vip.Addr.String()}
			for i, ok := range has {
				if ok {
					v.Dips = append(v.Dips, &apiv1.SnatDIP{Dip: dip(i).String(), Outer: dip(i).String(), Encap: "ipip"})
				}
			}
			return []*apiv1.SnatVIP{v}
		}
		revision := int64(1)
		snapshot := func() {
			first := &apiv1.SnatLeases{Snapshot: true, Configured: true, Vips: config()}
			rest := &apiv1.SnatLeases{Revision: revision, Newest: true}
			if p := book.Page(vip); p != nil {
				rest.Pages = append(rest.Pages, p.Pack(nil))
			}
			l.Begin()
			for _, up := range []*apiv1.SnatLeases{first, rest} {
				if err := l.Hear(&apiv1.PlanUpdate{SnatLeases: up}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !l.Valid(vip.Addr, time.Second) {
			t.Fatal("a VIP of which nobody said that it has SNAT must not be advertised")
		}
		snapshot()
		for step := range 300 {
			switch rng.IntN(10) {
			case 0:
				snapshot()
			case 1:
				i := rng.IntN(len(has))
				has[i] = !has[i]
				if has == [5]bool{} {
					has[i] = true
				}
				if err := l.Hear(&apiv1.PlanUpdate{SnatLeases: &apiv1.SnatLeases{Revision: revision, Configured: true, Vips: config(), Newest: true}}); err != nil {
					t.Fatal(err)
				}
			default:
				revision++
				b := &snat.Batch{Number: book.Last() + 1, At: now.Now(), Sections: []snat.Section{{VIP: vip}}}
				used := map[snat.Range]bool{}
				for range 1 + rng.IntN(5) {
					r := snat.Range(snat.FirstRange + rng.IntN(40))
					if used[r] {
						continue
					}
					used[r] = true
					s := &b.Sections[0]
					if p := book.Page(vip); p != nil {
						if _, leased := p.DIP(r); leased {
							s.Freed = append(s.Freed, r)
							continue
						}
					}
					s.Leased = append(s.Leased, snat.Lease{DIP: dip(rng.IntN(len(has))), Range: r})
				}
				raw := b.Pack(nil)
				if err := book.Fold(b, len(raw)); err != nil {
					t.Fatal(err)
				}
				if err := l.Hear(&apiv1.PlanUpdate{SnatLeases: &apiv1.SnatLeases{Revision: revision, Batches: [][]byte{raw}}}); err != nil {
					t.Fatal(err)
				}
			}
			for r := range snat.Range(snat.FirstRange + 40) {
				want, ok := netip.Addr{}, false
				if p := book.Page(vip); p != nil {
					want, ok = p.DIP(r)
				}
				if ok && !has[want.As4()[3]-11] {
					want, ok = netip.Addr{}, false // leased to a DIP that is gone
				}
				if got, gotOK := tables.DIP(vip, r.Port()+3); got != want || gotOK != ok {
					t.Fatalf("seed %d, step %d: range %s is of %v, want %v", seed, step, r, got, want)
				}
			}
			var rep apiv1.NodeReport
			if l.Say(&rep) && rep.GetSnatAck().GetRevision() != revision {
				t.Fatalf("seed %d, step %d: acknowledged %d, want %d", seed, step, rep.GetSnatAck().GetRevision(), revision)
			}
		}
		<-now.After(0)
		if !l.Valid(vip.Addr, time.Minute) || l.Revision() != revision {
			t.Fatal("a VIP whose leases are there must be advertised")
		}
		now.Advance(time.Minute + 1)
		if l.Valid(vip.Addr, time.Minute) || !l.Valid(vip.Addr, 0) || !l.Valid(netip.MustParseAddr("203.0.113.11"), time.Minute) {
			t.Fatal("a VIP is advertised whose leases may be old, or another one is not")
		}
	}
}
