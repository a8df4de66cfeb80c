package snat

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestShrinkLevels: DIPs keep at most their own and their tenant's limit, and those with the most
// ranges return first. The oracle takes single ranges from a DIP with the most.
func TestShrinkLevels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var dips []*dip
		var want []int
		for range rapid.IntRange(1, 12).Draw(t, "dips") {
			n := rapid.IntRange(0, 40).Draw(t, "ranges")
			dips, want = append(dips, &dip{keep: n}), append(want, n)
		}
		most := rapid.IntRange(1, 200).Draw(t, "most")
		sum := 0
		for _, n := range want {
			sum += n
		}
		for ; sum > most; sum-- {
			i := slices.Index(want, slices.Max(want))
			want[i]--
		}
		level(dips, most)
		var got []int
		for _, k := range dips {
			got = append(got, k.keep)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("kept %v of at most %d, want %v", got, most, want)
		}
	})
}

// TestLoweredLimitsTakeRangesBack: DIPs of two VIPs return ranges when either limit falls, and
// again when a host has lost the request; a raised limit ends it.
func TestLoweredLimitsTakeRangesBack(t *testing.T) {
	c := newCrowd(t, map[string]int{"shop": 6})
	configure := func(perDIP, perTenant int) {
		for name, v := range c.d.vips {
			conf := v.conf
			conf.PerDIP, conf.PerTenant = perDIP, perTenant
			c.d.Configure(name, &conf, c.now)
		}
		c.d.Shrink()
	}
	// obey applies the Shrink answers at all hosts, and returns how many ranges they return.
	obey := func() (back int) {
		for _, a := range c.d.Answers(c.now) {
			if a.Kind != Shrink {
				continue
			}
			k := c.d.vips[a.Holder.VIP].byDIP[a.Holder.DIP]
			give := slices.Clone(k.ranges[a.Keep:])
			back += len(give)
			c.d.Give(a.Holder, give, c.now)
		}
		if b, tally := c.d.Batch(c.now, 1000); b != nil {
			c.revision++
			c.d.Committed(tally, c.revision, c.now)
		}
		return back
	}
	for range 5 {
		for _, h := range c.holders["shop"] {
			c.d.Ask(h, 8, c.now)
		}
		b, tally := c.d.Batch(c.now, 10000)
		c.revision++
		c.d.Committed(tally, c.revision, c.now)
		c.d.Answers(c.now)
		_ = b
		c.now = c.now.Add(time.Second)
	}
	held := func() (each []int, sum int) {
		for _, h := range c.holders["shop"] {
			n := len(c.d.vips[h.VIP].byDIP[h.DIP].ranges)
			each, sum = append(each, n), sum+n
		}
		return each, sum
	}
	each, sum := held()
	if slices.Min(each) < 20 {
		t.Fatalf("DIPs have %v ranges", each)
	}
	configure(0, 0)
	if back := obey(); back != 0 {
		t.Errorf("%d ranges went back without a limit that is exceeded", back)
	}
	configure(20, 0)
	c.d.Answers(c.now) // these answers are lost
	c.d.Sync(c.holders["shop"][0], nil, c.now)
	first := false
	for _, a := range c.d.Answers(c.now) {
		first = first || a.Kind == Shrink && a.Keep == 20
	}
	if !first {
		t.Error("a host that asks for everything does not hear that it has too many")
	}
	configure(20, 0)
	if back := obey(); back != sum-6*20 {
		t.Errorf("%d ranges went back for a limit of 20 for each of 6 DIPs that had %v", back, each)
	}
	configure(20, 31)
	if back := obey(); back != 6*20-31 {
		t.Errorf("%d ranges went back for a limit of 31 for the tenant, want %d", back, 6*20-31)
	}
	if each, _ := held(); slices.Max(each)-slices.Min(each) > 1 {
		t.Errorf("DIPs have %v ranges left", each)
	}
	configure(0, 31)
	if back := obey(); back != 0 {
		t.Errorf("%d more ranges went back", back)
	}
}

// TestExhaustedVIPReclaims: DIPs with ranges of an exhausted VIP are requested to return unused
// ones, at a limited rate; the DIP that needs them is not.
func TestExhaustedVIPReclaims(t *testing.T) {
	name, now := VIP{Addr: netip.MustParseAddr("203.0.113.10")}, time.Unix(1_700_000_000, 0)
	rich, poor := Holder{name, netip.MustParseAddr("10.20.1.11")}, Holder{name, netip.MustParseAddr("10.20.1.12")}
	d := Open(DefaultRules, NewBook(), 1, nil, nil, now)
	d.Configure(name, &Config{Tenant: "shop", DIPs: []netip.Addr{rich.DIP, poor.DIP}, Closed: *Closed([2]uint16{1024 + 8*8, 65535})}, now)
	revision := int64(1)
	ask := func(h Holder) (reclaims int) {
		t.Helper()
		d.Ask(h, 8, now)
		if b, tally := d.Batch(now, 100); b != nil {
			revision++
			d.Committed(tally, revision, now)
		}
		for _, a := range d.Answers(now) {
			if a.Kind == Reclaim {
				if reclaims++; a.Holder != rich {
					t.Errorf("%v is to give ranges back", a.Holder)
				}
			}
		}
		return reclaims
	}
	if n := ask(rich); n != 0 {
		t.Errorf("%d requests while ranges are free", n)
	}
	if n := ask(poor); n != 1 {
		t.Errorf("%d requests when none is, want 1", n)
	}
	now = now.Add(reclaimPace - 1)
	if n := ask(poor); n != 0 {
		t.Errorf("%d requests before %v have passed", n, reclaimPace)
	}
	now = now.Add(1)
	if n := ask(poor); n != 1 {
		t.Errorf("%d requests after %v, want 1", n, reclaimPace)
	}
}

// TestStockShrinks: all but the most recently used ranges are returned as soon as they are unused.
// Those with connections take no new one, and stay until the last has ended.
func TestStockShrinks(t *testing.T) {
	s := newStockWithLimit(t, 128, 129, 130, 131)
	s.now = s.now.Add(time.Minute)
	s.stock.Used(130, s.now)
	s.stock.Used(128, s.now.Add(-time.Second))
	s.stock.Hear(Answer{Kind: Shrink, Keep: 1}, 1, s.now)
	usable, leaving := s.stock.Usable()
	if !slices.Equal(usable, []Range{130}) || !slices.Equal(leaving, []Range{128, 129, 131}) {
		t.Errorf("usable %v, leaving %v", usable, leaving)
	}
	said, _ := s.stock.Tick(s.now)
	if !slices.Equal(said.Return, []Range{129, 131}) {
		t.Errorf("returned %v, want the unused ones", said.Return)
	}
	s.stock.Hear(Answer{Kind: Taken, Ranges: said.Return, Revision: 2}, 1, s.now)
	for range 60 {
		s.now = s.now.Add(time.Second)
		s.stock.Used(128, s.now)
		if said, _ := s.stock.Tick(s.now); len(said.Return) > 0 {
			t.Fatalf("returned %v, which a connection has", said.Return)
		}
	}
	s.now = s.now.Add(DefaultStockRules.Soon)
	if said, _ := s.stock.Tick(s.now); !slices.Equal(said.Return, []Range{128}) {
		t.Errorf("returned %v after the connection ended, want 128", said.Return)
	}
}

// TestStockReclaims: unused ranges are returned immediately, except two. Those in use, and those
// used again meanwhile, wait for the normal time.
func TestStockReclaims(t *testing.T) {
	s := newStockWithLimit(t, 128, 129, 130, 131, 132)
	s.now = s.now.Add(DefaultStockRules.Soon)
	s.stock.Used(128, s.now)
	if said, ok := s.stock.Tick(s.now); ok {
		t.Fatalf("sent %+v", said)
	}
	s.stock.Hear(Answer{Kind: Reclaim}, 1, s.now)
	said, _ := s.stock.Tick(s.now)
	if len(said.Return) != 3 || slices.Contains(said.Return, 128) {
		t.Errorf("returned %v, want three of those that are unused", said.Return)
	}
	s.stock.Hear(Answer{Kind: Taken, Ranges: said.Return, Revision: 2}, 1, s.now)
	s.now = s.now.Add(DefaultStockRules.Idle / 2)
	if said, ok := s.stock.Tick(s.now); ok {
		t.Errorf("sent %+v: it keeps two", said)
	}
}

// TestRelease: without force the host is requested to return all but keep, and again when it lost
// the request. With force the ranges are taken immediately, and rest.
func TestRelease(t *testing.T) {
	c := newCrowd(t, map[string]int{"shop": 2})
	h := c.holders["shop"][0]
	k := c.d.vips[h.VIP].byDIP[h.DIP]
	turn := func() (answers []Answer) {
		if b, tally := c.d.Batch(c.now, 100); b != nil {
			c.revision++
			c.d.Committed(tally, c.revision, c.now)
		}
		return c.d.Answers(c.now)
	}
	c.d.Ask(h, 8, c.now)
	turn()
	if n, ok := c.d.Release(h, 8, true, c.now); n != 0 || !ok {
		t.Errorf("%d ranges beyond 8 of 8", n)
	}
	if _, ok := c.d.Release(Holder{h.VIP, netip.MustParseAddr("10.9.9.9")}, 0, true, c.now); ok {
		t.Error("a stranger is known")
	}
	if n, ok := c.d.Release(h, 5, false, c.now); n != 3 || !ok {
		t.Errorf("%d ranges beyond 5 of 8", n)
	}
	if a := turn(); len(a) != 1 || a[0].Kind != Shrink || a[0].Keep != 5 || len(k.ranges) != 8 {
		t.Errorf("answers %+v", a)
	}
	c.d.Sync(h, nil, c.now)
	if a := turn(); len(a) != 2 || a[1].Kind != Shrink || a[1].Keep != 5 {
		t.Errorf("answers to a host that forgot: %+v", a)
	}
	c.d.Ask(h, 1, c.now)
	turn()
	c.d.Sync(h, nil, c.now)
	if a := turn(); len(a) != 1 || a[0].Kind != All {
		t.Errorf("answers to a host that got more since: %+v", a)
	}
	c.d.Give(h, k.ranges[8:], c.now)
	c.now = c.now.Add(DefaultRules.Linger)
	turn()
	if n, ok := c.d.Release(h, 2, true, c.now); n != 6 || !ok {
		t.Errorf("%d ranges beyond 2 of 8", n)
	}
	c.now = c.now.Add(DefaultRules.Linger)
	a := turn()
	if len(a) != 1 || a[0].Kind != Taken || len(a[0].Ranges) != 6 || len(k.ranges) != 2 || k.vip.block.Leased() != 2 {
		t.Errorf("answers %+v, %d ranges are left, %d rest", a, len(k.ranges), k.vip.block.Resting())
	}
	c.d.Sync(h, nil, c.now)
	if a := turn(); len(a) != 1 || a[0].Kind != All || len(a[0].Ranges) != 2 {
		t.Errorf("answers %+v", a)
	}
}
