package load

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func keyOf(i int) Key {
	return Key{lb.EndpointKey{VIP: netip.MustParseAddr("203.0.113.10"), Protocol: lb.TCP, Port: uint16(80 + i/3)}, uint16(i % 3)}
}

func anyLoad(t *rapid.T) Load {
	return Load{
		Connections: rapid.Uint32Range(0, 70).Draw(t, "connections"), CPU: rapid.Uint16Range(0, FullCPU).Draw(t, "cpu"),
		Given: rapid.Float32Range(0, 10).Draw(t, "given"), Has: Part(rapid.IntRange(0, int(allParts)).Draw(t, "has")),
	}
}

func TestLoadDiffers(t *testing.T) {
	all := Load{Connections: 10, CPU: 500, Given: 1, Has: allParts}
	for _, c := range []struct {
		name   string
		change func(*Load)
		want   bool
	}{
		{"nothing", func(*Load) {}, false},
		{"one connection of few", func(l *Load) { l.Connections++ }, true},
		{"one connection less", func(l *Load) { l.Connections-- }, true},
		{"a hundredth of the processors", func(l *Load) { l.CPU += 10 }, false},
		{"two hundredths", func(l *Load) { l.CPU -= 20 }, true},
		{"a hundredth of what is given", func(l *Load) { l.Given = 1.01 }, false},
		{"a twentieth", func(l *Load) { l.Given = 1.05 }, true},
		{"another pace", func(l *Load) { l.Every = time.Second }, true},
		{"a part more", func(l *Load) { l.Has &^= HasGiven }, true},
	} {
		o := all
		c.change(&o)
		if got := o.Differs(all); got != c.want || all.Differs(o) != c.want {
			t.Errorf("%s: differs %v, want %v", c.name, got, c.want)
		}
	}
	if (Load{Connections: 255}).Differs(Load{Connections: 255, Opened: 9}) || !(Load{Connections: 255}).Differs(Load{Connections: 254}) {
		t.Error("of few connections one counts, and not those that came and went")
	}
	if (Load{Connections: 10_000}).Differs(Load{Connections: 10_006}) || !(Load{Connections: 10_000}).Differs(Load{Connections: 10_007}) {
		t.Error("of many connections a sixteenth of the root counts, and no less")
	}
	if (Load{}).Differs(Load{}) {
		t.Error("nothing differs from nothing")
	}
}

// TestReporter: the last reported loads do not, at any time, differ from the true ones, and are no
// older than the refresh interval.
func TestReporter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Reporter
		now := epoch
		heard, at := map[Key]Load{}, map[Key]time.Time{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
			if rapid.IntRange(0, 9).Draw(t, "afresh") == 0 {
				r.Afresh()
				clear(heard)
			}
			var all []Member
			for i := range 6 {
				if rapid.Bool().Draw(t, "there") {
					all = append(all, Member{keyOf(i), anyLoad(t)})
				}
			}
			for _, m := range r.Report(all, now) {
				heard[m.Key], at[m.Key] = m.Load, now
			}
			for _, m := range all {
				got, known := heard[m.Key]
				if !known || got.Differs(m.Load) || now.Sub(at[m.Key]) >= RefreshEvery {
					t.Fatalf("%v: heard %+v (%v) %s ago, true %+v", m.Key, got, known, now.Sub(at[m.Key]), m.Load)
				}
			}
		}
	})
}

// TestReporterIsQuiet: an unchanged load is reported once per RefreshEvery.
func TestReporterIsQuiet(t *testing.T) {
	var r Reporter
	told := 0
	for at := time.Duration(0); at < 10*RefreshEvery; at += SampleEvery {
		told += len(r.Report([]Member{{keyOf(0), Load{Connections: 7, Has: HasConnections}}}, epoch.Add(at)))
	}
	if told != 10 {
		t.Errorf("told %d times, want 10", told)
	}
}

// TestReporterInTime: for any sampling interval, an unchanged load is reported again before
// schedulers stop using it, and before it is removed.
func TestReporterInTime(t *testing.T) {
	for _, every := range []time.Duration{MinSample, SampleEvery, 3 * time.Second, 4 * time.Second, 5 * time.Second, 7 * time.Second, MaxSample} {
		var r Reporter
		l, last := Load{Connections: 7, Has: HasConnections, Every: every}, time.Duration(0)
		for at := time.Duration(0); at < 2*time.Minute; at += every {
			if !l.Fresh(at-last) || at-last >= StaleAfter {
				t.Fatalf("every %v: %v old and not told again", every, at-last)
			}
			if len(r.Report([]Member{{keyOf(0), l}}, epoch.Add(at))) > 0 {
				last = at
			}
		}
	}
	if l := (Load{}); l.Fresh(RefreshEvery*3/2) || !l.Fresh(RefreshEvery) || l.Interval() != SampleEvery {
		t.Error("of a usual host 7.5 seconds are stale, 5 are not")
	}
	for _, every := range []time.Duration{-1, 1, MinSample - 1, MaxSample + 1} {
		if (Load{Every: every}).Valid() {
			t.Errorf("%v between two looks is valid", every)
		}
	}
}

// TestPace: the pace is that of the fastest host while its reports arrive; never slower than the
// default.
func TestPace(t *testing.T) {
	var p Pace
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	of := func(every ...time.Duration) (out []Member) {
		for _, e := range every {
			out = append(out, Member{Load: Load{Every: e}})
		}
		return out
	}
	for i, c := range []struct {
		second int
		heard  []Member
		want   time.Duration
	}{
		{0, nil, SampleEvery}, {1, of(10 * time.Second), SampleEvery}, {2, of(0, 20*time.Millisecond, 50*time.Millisecond), 20 * time.Millisecond},
		{10, of(50 * time.Millisecond), 20 * time.Millisecond}, {16, of(50 * time.Millisecond), 20 * time.Millisecond}, {17, nil, SampleEvery},
		{18, of(50 * time.Millisecond), 50 * time.Millisecond},
	} {
		p.Heard(c.heard, at(c.second))
		if got := p.Every(at(c.second)); got != c.want {
			t.Errorf("%d: %v at second %d, want %v", i, got, c.second, c.want)
		}
	}
}

// naive is a Table without order: every load that was ever put.
type naive []row

func (n naive) newest(k Key, now time.Time) (row, bool) {
	for i := len(n) - 1; i >= 0; i-- {
		if n[i].Key == k {
			return n[i], now.Sub(n[i].at) < StaleAfter
		}
	}
	return row{}, false
}

// TestTable compares the table with all loads ever put, and lets two readers follow it, one of
// which excludes an origin.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, all := NewTable(), naive{}
		now := epoch
		var asked, askedOther uint64
		heard, heardOther := map[Key]Load{}, map[Key]Load{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond)
			if rapid.IntRange(0, 2).Draw(t, "put") > 0 {
				origin := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "origin")
				var put []Member
				for range rapid.IntRange(0, 4).Draw(t, "members") {
					put = append(put, Member{keyOf(rapid.IntRange(0, 8).Draw(t, "member")), anyLoad(t)})
				}
				table.Put(put, origin, now)
				for _, m := range put {
					all = append(all, row{Member: m, origin: origin, at: now})
				}
			}
			if rapid.Bool().Draw(t, "listen") {
				var news []Member
				news, asked = table.Since(asked, now, nil)
				for _, m := range news {
					heard[m.Key] = m.Load
				}
				if again, _ := table.Since(asked, now, nil); len(again) != 0 {
					t.Fatalf("told again: %v", again)
				}
				news, askedOther = table.Since(askedOther, now, func(origin string) bool { return origin == "a" })
				for _, m := range news {
					heardOther[m.Key] = m.Load
				}
				for i := range 9 {
					want, counts := all.newest(keyOf(i), now)
					if counts && heard[want.Key] != want.Load {
						t.Fatalf("%v: heard %+v, newest %+v", want.Key, heard[want.Key], want)
					}
					if counts && want.origin != "a" && heardOther[want.Key] != want.Load {
						t.Fatalf("%v: heard %+v of others, newest %+v", want.Key, heardOther[want.Key], want)
					}
				}
			}
			for i := range 9 {
				want, known := all.newest(keyOf(i), now)
				if got, ok := table.Of(keyOf(i), now); ok != known || known && got != want.Load {
					t.Fatalf("%v: %+v (%v), want %+v (%v)", keyOf(i), got, ok, want, known)
				}
			}
		}
		table.Expire(now.Add(StaleAfter))
		if table.Len() != 0 {
			t.Fatalf("%d loads for ever", table.Len())
		}
	})
}

// TestTally: items begin and end, some unseen, while scans of all items pass through their places.
// The tally's error is never larger than the number of items that began and ended during the last
// scan, and no later event is missed.
func TestTally(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const places = 8
		var there [places]int
		var began, ended uint64
		var tally Tally
		truth := func() (n uint64) {
			for _, p := range there {
				n += uint64(p)
			}
			return n
		}
		event := func(counted bool) {
			p := rapid.IntRange(0, places-1).Draw(t, "place")
			if there[p] > 0 && rapid.Bool().Draw(t, "ends") {
				there[p]--
				if counted {
					ended++
				}
				return
			}
			there[p]++
			if counted {
				began++
			}
		}
		for range 5 {
			for range rapid.IntRange(0, 20).Draw(t, "before") {
				event(rapid.IntRange(0, 4).Draw(t, "counted") > 0)
			}
			b, e, n := began, ended, uint64(0)
			for p := range places {
				if rapid.Bool().Draw(t, "busy") {
					event(true)
				}
				n += uint64(there[p])
			}
			tally.Counted(n, b, e, began, ended)
			slack := began - b + ended - e
			for range rapid.IntRange(0, 10).Draw(t, "after") {
				event(true)
			}
			got, known := tally.Now(began, ended)
			if off := int64(got) - int64(truth()); !known || off > int64(slack) || -off > int64(slack) {
				t.Fatalf("known %v: %d, there are %d; %d events during the look", known, got, truth(), slack)
			}
		}
	})
}

func TestTallyBeginsWithNone(t *testing.T) {
	var tally Tally
	if _, known := tally.Now(5, 3); known {
		t.Error("it knows before anybody looked")
	}
	tally.None(5, 8) // more ended than began: the counts include items from before
	if n, known := tally.Now(7, 9); !known || n != 1 {
		t.Errorf("%d (%v), want 1", n, known)
	}
	if n, _ := tally.Now(7, 12); n != 0 {
		t.Errorf("%d, want none", n)
	}
}

func TestParseTicks(t *testing.T) {
	got, err := ParseTicks(strings.NewReader("cpu  10 20 30 400 50 6 7 8 9 10\ncpu0 1 2 3 4\n"))
	if want := (Ticks{Busy: 81, All: 531}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if got, err := ParseTicks(strings.NewReader("cpu 1 1 1 7")); err != nil || got != (Ticks{Busy: 3, All: 10}) {
		t.Errorf("an old kernel: %+v, %v", got, err)
	}
	for _, bad := range []string{"", "cpu0 1 2 3 4", "cpu 1 2 3", "cpu 1 2 3 x"} {
		if got, err := ParseTicks(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

// TestCPU: the share is that of the last second.
func TestCPU(t *testing.T) {
	var c CPU
	var now Ticks
	var got []uint16
	for i := range 40 {
		share, known := c.Sampled(now)
		if known != (i > 0) {
			t.Fatalf("sample %d: known %v", i, known)
		}
		got = append(got, share)
		now.All += 40
		if i >= 10 && i < 20 {
			now.Busy += 30
		}
	}
	if got[10] != 0 || got[20] != 750 || got[15] != 375 || got[25] != 375 || got[39] != 0 {
		t.Errorf("shares %v", got)
	}
	// For any interval. With long intervals the share is that between two samples.
	for every, want := range map[time.Duration]uint16{10 * time.Millisecond: 100, 2 * time.Second: 1000} {
		c := CPU{Every: every}
		for range 200 {
			now.All += 100
			c.Sampled(now)
		}
		var share uint16
		for range 10 {
			now.All += 100
			now.Busy += 100
			share, _ = c.Sampled(now)
		}
		if share != want {
			t.Errorf("samples every %v: %d, want %d", every, share, want)
		}
	}
	if _, known := c.Sampled(Ticks{All: 1}); known {
		t.Error("a share of a clock that went back")
	}
	if !slices.IsSorted(got[10:20]) {
		t.Errorf("shares %v", got[10:20])
	}
}
