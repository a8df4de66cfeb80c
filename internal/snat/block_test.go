package snat

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// naive is a simple block: a state for each range.
type naive struct {
	closed [Ranges]bool
	owner  [Ranges]Owner
	until  [Ranges]time.Time
	next   Range
}

func (n *naive) take(o Owner, now time.Time) (Range, bool) {
	for i := range Ranges {
		r := Range((int(n.next) + i) % Ranges)
		if !n.closed[r] && n.owner[r] == 0 && !n.until[r].After(now) {
			n.owner[r], n.next = o, (r+1)%Ranges
			return r, true
		}
	}
	return 0, false
}

func TestBlockIsTheNaiveOne(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		now := time.Unix(1_700_000_000, 0)
		ports := [][2]uint16{{1024 + 200, 60000 + uint16(rng.IntN(5000))}}
		b, n := NewBlock(Closed(ports...)), &naive{}
		mark := func(ports ...[2]uint16) {
			for r := range Range(Ranges) {
				n.closed[r] = r < FirstRange
				for _, p := range ports {
					n.closed[r] = n.closed[r] || r >= RangeOf(p[0]) && r <= RangeOf(p[1])
				}
			}
		}
		mark(ports...)
		var leased []Range
		for i := range 4000 {
			b.Tick(now)
			switch rng.IntN(10) {
			case 0, 1, 2, 3, 4:
				o := Owner(1 + rng.IntN(5))
				r, ok := b.Take(o)
				want, wantOK := n.take(o, now)
				if r != want || ok != wantOK {
					t.Fatalf("seed %d, step %d: took %v %v, want %v %v", seed, i, r, ok, want, wantOK)
				}
				if ok {
					leased = append(leased, r)
				}
			case 5, 6, 7, 8:
				if len(leased) > 0 {
					k := rng.IntN(len(leased))
					r := leased[k]
					leased[k] = leased[len(leased)-1]
					leased = leased[:len(leased)-1]
					n.owner[r], n.until[r] = 0, now.Add(time.Minute)
					b.Give(r, now.Add(time.Minute))
				}
			case 9:
				now = now.Add(time.Duration(rng.IntN(int(5 * time.Second))))
				if rng.IntN(20) == 0 {
					ports := [][2]uint16{{1024 + uint16(rng.IntN(500)), 60000 + uint16(rng.IntN(5000))}}
					b.Close(Closed(ports...))
					mark(ports...)
				}
			}
			free := 0
			if i%200 == 0 {
				b.Tick(now)
				for r := range Range(Ranges) {
					if b.Owner(r) != n.owner[r] {
						t.Fatalf("seed %d, step %d: range %s has owner %d, want %d", seed, i, r, b.Owner(r), n.owner[r])
					}
					if !n.closed[r] && n.owner[r] == 0 && !n.until[r].After(now) {
						free++
					}
				}
				if b.Free() != free || b.free.Count() != free || b.Leased() != len(leased) {
					t.Fatalf("seed %d, step %d: %d (%d) free, %d leased, want %d and %d", seed, i, b.Free(), b.free.Count(), b.Leased(), free, len(leased))
				}
			}
		}
	}
}

func TestFreedRangesRestLongest(t *testing.T) {
	b, now := NewBlock(Closed()), time.Unix(0, 0)
	first, _ := b.Take(1)
	b.Give(first, now)
	b.Tick(now)
	for range MaxRanges - 1 {
		if r, ok := b.Take(1); !ok || r == first {
			t.Fatalf("took %v %v before all others were taken", r, ok)
		}
	}
	if r, ok := b.Take(1); !ok || r != first {
		t.Fatalf("took %v %v, want %v", r, ok, first)
	}
	if _, ok := b.Take(1); ok {
		t.Fatal("took a range of a block that has none left")
	}
}

func sampleBatch() *Batch {
	dip := netip.MustParseAddr("10.20.1.11")
	return &Batch{Number: 7, At: time.UnixMilli(1_700_000_000_123), Sections: []Section{
		{VIP: VIP{VNI: 5, Addr: netip.MustParseAddr("203.0.113.10")}, Leased: []Lease{{dip, 200}, {dip, 201}}, Freed: []Range{}},
		{VIP: VIP{Addr: netip.MustParseAddr("203.0.113.11")}, Leased: []Lease{}, Freed: []Range{8191, 128}},
	}}
}

func FuzzUnpack(f *testing.F) {
	f.Add(sampleBatch().Pack(nil))
	p := newPage(VIP{Addr: netip.MustParseAddr("203.0.113.10")})
	_ = p.lease(Lease{netip.MustParseAddr("10.20.1.11"), 300})
	_ = p.lease(Lease{netip.MustParseAddr("10.20.1.12"), 301})
	_ = p.free(300, time.UnixMilli(1_700_000_000_000))
	f.Add(p.Pack(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		var b Batch
		if b.Unpack(in) == nil {
			if again := b.Pack(nil); !bytes.Equal(again, in) {
				t.Fatalf("% x packs as % x", in, again)
			}
		}
		if p, err := UnpackPage(in); err == nil {
			again, err := UnpackPage(p.Pack(nil))
			if err != nil || again.Leased() != p.Leased() || len(again.Rests()) != len(p.Rests()) {
				t.Fatalf("% x is not the same when packed again: %v", in, err)
			}
		}
	})
}

func TestDemandDoubles(t *testing.T) {
	var d Demand
	now := time.Unix(100, 0)
	for i, c := range []struct {
		after time.Duration
		want  int
	}{{0, 2}, {time.Second, 4}, {DemandWindow, 8}, {DemandWindow, 10}, {DemandWindow + 1, 2}} {
		now = now.Add(c.after)
		if got := d.Ask(now, 2, 10); got != c.want {
			t.Fatalf("ask %d: %d, want %d", i, got, c.want)
		}
	}
}

// TestAbuserWaitsBehindItself: a tenant with requests of 10,000 DIPs delays another tenant's
// request by one turn.
func TestAbuserWaitsBehindItself(t *testing.T) {
	now := time.Unix(0, 0)
	d := Open(DefaultRules, NewBook(), 1, nil, nil, now)
	closed := Closed()
	for i := range 40 {
		c := &Config{Tenant: "abuser", Closed: *closed}
		for j := range 250 {
			c.DIPs = append(c.DIPs, netip.AddrFrom4([4]byte{10, 1, byte(i), byte(j)}))
		}
		name := VIP{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}
		d.Configure(name, c, now)
		for _, dip := range c.DIPs {
			for range 3 { // it does not wait for answers
				d.Ask(Holder{name, dip}, 1, now)
			}
		}
	}
	other := Holder{VIP{Addr: netip.MustParseAddr("198.51.100.1")}, netip.MustParseAddr("10.2.0.1")}
	d.Configure(other.VIP, &Config{Tenant: "normal", Closed: *closed, DIPs: []netip.Addr{other.DIP}}, now)
	d.Ask(other, 1, now)
	b, tally := d.Batch(now, 64)
	d.Committed(tally, 2, now)
	for _, a := range d.Answers(now) {
		if a.Holder == other && a.Kind == Granted {
			if n := d.Counts().Repeated; n != 20_000 {
				t.Fatalf("%d asks were repeated ones, want 20000", n)
			}
			return
		}
	}
	t.Fatalf("the other tenant's ask is not in the first batch of %d changes", b.Changes())
}

func TestLimits(t *testing.T) {
	now := time.Unix(0, 0)
	d := Open(DefaultRules, NewBook(), 1, nil, nil, now)
	name := VIP{Addr: netip.MustParseAddr("203.0.113.10")}
	c := &Config{Tenant: "shop", Closed: *Closed(), PerDIP: 3, PerTenant: 5, DIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}}
	d.Configure(name, c, now)
	ask := func(i, want int) Answer {
		d.Ask(Holder{name, c.DIPs[i]}, want, now)
		if b, tally := d.Batch(now, 100); b != nil {
			d.Committed(tally, 2, now)
		}
		return d.Answers(now)[0]
	}
	for i, s := range []struct {
		dip, want, got int
		reason         Reason
	}{{0, 2, 2, 0}, {0, 2, 1, 0}, {0, 1, 0, ReasonDIPLimit}, {1, 3, 2, 0}, {1, 1, 0, ReasonTenantLimit}} {
		if a := ask(s.dip, s.want); len(a.Ranges) != s.got || a.Reason != s.reason {
			t.Fatalf("ask %d: %d ranges, reason %q, want %d and %q", i, len(a.Ranges), a.Reason, s.got, s.reason)
		}
	}
	if d.Ask(Holder{name, netip.MustParseAddr("10.0.0.3")}, 1, now) {
		t.Fatal("a stranger may ask")
	}
}

func TestSilentMuxHoldsUpGrantsForTwentyMilliseconds(t *testing.T) {
	now := time.Unix(0, 0)
	d := Open(DefaultRules, NewBook(), 1, []string{"a", "b"}, nil, now)
	d.Ack("a", 1)
	d.Ack("b", 1)
	name := VIP{Addr: netip.MustParseAddr("203.0.113.10")}
	h := Holder{name, netip.MustParseAddr("10.0.0.1")}
	d.Configure(name, &Config{Tenant: "shop", Closed: *Closed(), DIPs: []netip.Addr{h.DIP}}, now)
	d.Ask(h, 1, now)
	_, tally := d.Batch(now, 100)
	d.Committed(tally, 2, now)
	d.Ack("a", 2)
	if len(d.Answers(now)) != 0 {
		t.Fatal("granted before both muxes know")
	}
	now = now.Add(20*time.Millisecond - 1)
	d.Tick(now)
	if len(d.Answers(now)) != 0 || !d.Eligible("b") || d.Due(now).Sub(now) != 1 {
		t.Fatal("granted before the mux was silent for 20 ms")
	}
	now = now.Add(1)
	d.Tick(now)
	if got := d.Answers(now); len(got) != 1 || got[0].Kind != Granted || d.Eligible("b") || len(d.Lost()) != 1 {
		t.Fatalf("answers %v when the mux was silent for 20 ms", got)
	}
	d.Ack("b", 1)
	if d.Eligible("b") {
		t.Fatal("a mux is eligible that lacks a revision")
	}
	d.Ack("b", 2)
	if !d.Eligible("b") {
		t.Fatal("a mux is not eligible that has everything")
	}
	d.Ack("b", 1)
	if d.Eligible("b") {
		t.Fatal("a mux is eligible that went back to a revision before")
	}
}

// TestOpenDeskWaitsForMuxesThatItHasNotHeard: a new allocator waits for muxes that have not
// reported, because their acknowledgements are in flight; one that has reported has 20 ms as usual.
func TestOpenDeskWaitsForMuxesThatItHasNotHeard(t *testing.T) {
	now := time.Unix(0, 0)
	name := VIP{Addr: netip.MustParseAddr("203.0.113.10")}
	h := Holder{name, netip.MustParseAddr("10.0.0.1")}
	d := Open(DefaultRules, NewBook(), 1, []string{"heard", "late", "away"}, nil, now)
	d.Ack("heard", 1)
	d.Configure(name, &Config{Tenant: "shop", Closed: *Closed(), DIPs: []netip.Addr{h.DIP}}, now)
	d.Ask(h, 1, now)
	_, tally := d.Batch(now, 100)
	d.Committed(tally, 2, now)
	d.Ack("heard", 2)
	now = now.Add(DefaultRules.Opening - 1)
	d.Tick(now)
	if d.Due(now).Sub(now) != 1 || len(d.Answers(now)) != 0 || !d.Eligible("late") || !d.Eligible("away") {
		t.Fatal("granted before muxes could be heard")
	}
	d.Ack("late", 2)
	now = now.Add(1)
	d.Tick(now)
	if got := d.Answers(now); len(got) != 1 || got[0].Kind != Granted || d.Eligible("away") || !d.Eligible("late") {
		t.Fatalf("answers %v after the time in which muxes could be heard", got)
	}
	if n := d.Counts().Silent; n != 0 {
		t.Errorf("%d silences: a mux that was away is not one that was silent", n)
	}
}

func TestSaveShortensTheLog(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	b := NewBook()
	var number uint64
	stored := map[uint64][]byte{}
	pages := map[VIP][]byte{}
	for range 4 * logBatches {
		number++
		batch := &Batch{Number: number, At: time.UnixMilli(int64(number))}
		for range 3 {
			name := VIP{Addr: netip.AddrFrom4([4]byte{203, 0, 113, byte(rng.IntN(50))})}
			has := false
			for _, s := range batch.Sections {
				has = has || s.VIP == name
			}
			r := Range(FirstRange + rng.IntN(500))
			if has {
				continue
			}
			s := Section{VIP: name}
			if p := b.Page(name); p != nil && p.owners[r] != 0 {
				s.Freed = []Range{r}
			} else {
				s.Leased = []Lease{{netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(9))}), r}}
			}
			batch.Sections = append(batch.Sections, s)
		}
		save, drop := b.Save()
		for _, p := range save {
			pages[p.VIP] = p.Pack(nil)
		}
		for _, n := range drop {
			delete(stored, n)
		}
		raw := batch.Pack(nil)
		stored[number] = raw
		for _, p := range save {
			q, err := UnpackPage(pages[p.VIP])
			if err != nil {
				t.Fatal(err)
			}
			b.Load(q)
		}
		for _, n := range drop {
			b.DropBatch(n)
		}
		if err := b.Fold(batch, len(raw)); err != nil {
			t.Fatal(err)
		}
	}
	if len(stored) > 2*logBatches {
		t.Fatalf("%d batches are stored, want at most %d", len(stored), 2*logBatches)
	}
	again := NewBook()
	for _, raw := range pages {
		p, err := UnpackPage(raw)
		if err != nil {
			t.Fatal(err)
		}
		again.Load(p)
	}
	for n := uint64(1); n <= number; n++ {
		if raw := stored[n]; raw != nil {
			var batch Batch
			if err := batch.Unpack(raw); err != nil {
				t.Fatal(err)
			}
			if err := again.Fold(&batch, len(raw)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range b.VIPs() {
		for r := range Range(Ranges) {
			want, _ := b.Page(name).DIP(r)
			got, _ := again.Page(name).DIP(r)
			if got != want {
				t.Fatalf("range %s of %s is of %v when read again, want %v", r, name.Addr, got, want)
			}
		}
	}
}

func BenchmarkTakeGive(b *testing.B) {
	blocks := make([]*Block, 4000)
	for i := range blocks {
		blocks[i] = NewBlock(Closed())
	}
	now := time.Unix(0, 0)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		k := blocks[i%len(blocks)]
		r, _ := k.Take(1)
		k.Give(r, now)
		k.Tick(now)
		i++
	}
}

func BenchmarkTake(b *testing.B) {
	k := NewBlock(Closed())
	b.ReportAllocs()
	for b.Loop() {
		r, ok := k.Take(1)
		if !ok {
			b.StopTimer()
			k = NewBlock(Closed())
			b.StartTimer()
		}
		_ = r
	}
}

// TestQuarantineOfAVIP: a freed range is leased only after its VIP's quarantine. A new leader
// repeats the quarantine, unless the range was freed so long ago that clock differences do not
// matter.
func TestQuarantineOfAVIP(t *testing.T) {
	name, dip := VIP{Addr: netip.MustParseAddr("203.0.113.10")}, netip.MustParseAddr("10.20.1.11")
	for _, quarantine := range []time.Duration{0, 30 * time.Second, MaxQuarantine} {
		now, rests := time.Unix(1_700_000_000, 0), quarantine
		if rests == 0 {
			rests = Quarantine
		}
		book, revision := NewBook(), int64(1)
		// Only one range may be leased.
		conf := &Config{Tenant: "shop", DIPs: []netip.Addr{dip}, Closed: *Closed([2]uint16{1032, 65535}), Quarantine: quarantine}
		configs := map[VIP]*Config{name: conf}
		var d *Desk
		open := func() {
			d = Open(DefaultRules, book, revision, nil, configs, now)
			d.Configure(name, conf, now)
		}
		commit := func() (granted int) {
			t.Helper()
			b, tally := d.Batch(now, 100)
			if b != nil {
				if err := book.Fold(b, len(b.Pack(nil))); err != nil {
					t.Fatal(err)
				}
				revision++
				d.Committed(tally, revision, now)
			}
			for _, a := range d.Answers(now) {
				if a.Kind == Granted {
					granted += len(a.Ranges)
				}
			}
			return granted
		}
		ask := func() int {
			t.Helper()
			d.Ask(Holder{name, dip}, 1, now)
			return commit()
		}
		open()
		if ask() != 1 {
			t.Fatal("the range is not granted")
		}
		d.Give(Holder{name, dip}, []Range{FirstRange}, now)
		commit()
		freed := now
		now = freed.Add(rests - 1)
		if n := ask(); n != 0 {
			t.Errorf("quarantine %v: granted before it is over", quarantine)
		}
		open() // another leader
		now = now.Add(rests - 1)
		if n := ask(); n != 0 {
			t.Errorf("quarantine %v: granted by another leader before it is over", quarantine)
		}
		now = now.Add(1)
		if n := ask(); n != 1 {
			t.Errorf("quarantine %v: not granted when it is over", quarantine)
		}
		d.Give(Holder{name, dip}, []Range{FirstRange}, now)
		commit()
		now = now.Add(restMargin*rests + time.Second)
		if open(); ask() != 1 {
			t.Errorf("quarantine %v: a leader that begins after %d times as long does not grant it", quarantine, restMargin)
		}
	}
}

// TestShorterQuarantine: after a change, resting ranges keep resting, and later ones do not become
// free earlier.
func TestShorterQuarantine(t *testing.T) {
	b, now := NewBlock(Closed([2]uint16{1040, 65535})), time.Unix(0, 0)
	first, _ := b.Take(1)
	second, _ := b.Take(1)
	b.Give(first, now.Add(time.Hour))
	b.Give(second, now.Add(time.Minute))
	if b.Tick(now.Add(59 * time.Minute)); b.Free() != 0 {
		t.Errorf("%d ranges are free before an hour has passed", b.Free())
	}
	if b.Tick(now.Add(time.Hour)); b.Free() != 2 {
		t.Errorf("%d ranges are free after an hour, want 2", b.Free())
	}
}
