package mux

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/snat"
)

// TestLeasesReachTheTables: after any order of snapshots, changes and DIPs, the tables have the
// same holder of every range as the manager's lease store.
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
		if !l.Newest(vip.Addr, time.Second) {
			t.Fatal("a VIP without SNAT has a rank")
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
					want, ok = netip.Addr{}, false // leased to a DIP that was removed
				}
				if got, gotOK := tables.DIP(vip, r.Port()+3); got != want || gotOK != ok {
					t.Fatalf("seed %d, step %d: range %s is of %v, want %v", seed, step, r, got, want)
				}
			}
			p := book.Page(vip)
			if got, want := l.known[vip.Addr].leased, p != nil && p.Leased() > 0; got != want {
				t.Fatalf("seed %d, step %d: leased: %v, want %v", seed, step, got, want)
			}
			var rep apiv1.NodeReport
			if l.Say(&rep) && rep.GetSnatAck().GetRevision() != revision {
				t.Fatalf("seed %d, step %d: acknowledged %d, want %d", seed, step, rep.GetSnatAck().GetRevision(), revision)
			}
		}
		<-now.After(0)
		if !l.Newest(vip.Addr, time.Minute) || l.Revision() != revision {
			t.Fatal("leases that were confirmed do not count as the newest")
		}
		now.Advance(time.Minute + 1)
		if l.Ranks(time.Minute)[vip.Addr] != rankUnconfirmed || !l.Newest(netip.MustParseAddr("203.0.113.11"), time.Minute) {
			t.Fatal("leases that may be old count as the newest, or a VIP without SNAT has a rank")
		}
	}
}

// TestOldestVIPsGetTheRoom: VIPs get table space in the manager's order, whatever the agent had
// before. Another one gets space as soon as it is free.
func TestOldestVIPsGetTheRoom(t *testing.T) {
	// the oldest first
	vips := []string{"203.0.113.19", "203.0.113.12", "203.0.113.15", "203.0.113.11"}
	configured := func(vips ...string) (out []*apiv1.SnatVIP) {
		for _, vip := range vips {
			out = append(out, &apiv1.SnatVIP{Vip: vip, Service: vip, Dips: []*apiv1.SnatDIP{{Dip: "10.20.1.11", Outer: "10.20.1.11", Encap: "ipip"}}})
		}
		return out
	}
	held := func(l *Leases) (out []string) {
		for _, vip := range vips {
			if l.Newest(netip.MustParseAddr(vip), time.Minute) {
				out = append(out, vip)
			}
		}
		return out
	}
	hear := func(l *Leases, in *apiv1.SnatLeases) {
		t.Helper()
		if err := l.Hear(&apiv1.PlanUpdate{SnatLeases: in}); err != nil {
			t.Fatal(err)
		}
	}
	now := clock.NewFake(time.Unix(1_700_000_000, 0))
	for range 10 { // map order is random
		tables := &dataplane.FakeMuxSNAT{Room: 2}
		for start := range 3 {
			l := NewLeases(tables, now)
			if start == 2 { // the machine was down
				tables = &dataplane.FakeMuxSNAT{Room: 2}
				l = NewLeases(tables, now)
			}
			l.Begin()
			hear(l, &apiv1.SnatLeases{Snapshot: true, Configured: true, Vips: configured(vips...), Revision: 5, Newest: true})
			if got := held(l); !slices.Equal(got, vips[:2]) {
				t.Fatalf("start %d: %v have room, want %v", start, got, vips[:2])
			}
			if start == 2 {
				hear(l, &apiv1.SnatLeases{Configured: true, Vips: configured(vips[1:]...), Revision: 5, Newest: true})
				hear(l, &apiv1.SnatLeases{Revision: 5, Newest: true})
				if got := held(l); !slices.Equal(got[len(got)-2:], vips[1:3]) {
					t.Fatalf("when the oldest one is gone %v have room, want %v", got, vips[1:3])
				}
			}
		}
	}
}

// TestLeaseChangesTouchTheirVIP: the first and the last lease of a VIP are published without
// rebuilding the state of other VIPs, of which a mux may have thousands.
func TestLeaseChangesTouchTheirVIP(t *testing.T) {
	first, second := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11")
	l := NewLeases(&dataplane.FakeMuxSNAT{}, clock.NewFake(time.Unix(1_700_000_000, 0)))
	dip := netip.MustParseAddr("10.20.1.11")
	var vips []*apiv1.SnatVIP
	for _, vip := range []netip.Addr{first, second} {
		vips = append(vips, &apiv1.SnatVIP{Vip: vip.String(), Dips: []*apiv1.SnatDIP{{Dip: dip.String(), Outer: dip.String(), Encap: "ipip"}}})
	}
	hear := func(in *apiv1.SnatLeases) {
		t.Helper()
		if err := l.Hear(&apiv1.PlanUpdate{SnatLeases: in}); err != nil {
			t.Fatal(err)
		}
	}
	hear(&apiv1.SnatLeases{Snapshot: true, Configured: true, Vips: vips})
	hear(&apiv1.SnatLeases{Revision: 1, Newest: true})
	<-l.moves
	// A rebuild would remove this VIP, which no server has.
	mark := netip.MustParseAddr("203.0.113.99")
	l.known[mark] = knownVIP{}
	for step, change := range []snat.Section{
		{VIP: snat.VIP{Addr: first}, Leased: []snat.Lease{{DIP: dip, Range: snat.FirstRange}}},
		{VIP: snat.VIP{Addr: first}, Freed: []snat.Range{snat.FirstRange}},
	} {
		was := l.changes
		b := &snat.Batch{Number: uint64(step + 1), At: l.clock.Now(), Sections: []snat.Section{change}}
		hear(&apiv1.SnatLeases{Revision: int64(step + 2), Batches: [][]byte{b.Pack(nil)}})
		if got, want := l.known[first].leased, len(change.Leased) > 0; got != want {
			t.Errorf("step %d: leased: %v, want %v", step, got, want)
		}
		if l.known[second].leased {
			t.Errorf("step %d: the other VIP is leased", step)
		}
		if _, ok := l.known[mark]; !ok {
			t.Errorf("step %d: the state of all VIPs was rebuilt", step)
		}
		select {
		case <-l.moves:
		default:
			t.Errorf("step %d: no notification", step)
		}
		if l.changes != was+1 {
			t.Errorf("step %d: %d changes counted, want 1", step, l.changes-was)
		}
	}
}
