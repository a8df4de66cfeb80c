package snat

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// crowd is an allocator with requests of several tenants, each with its own VIPs and DIPs.
type crowd struct {
	t        *testing.T
	d        *Desk
	now      time.Time
	revision int64
	holders  map[string][]Holder
	// got counts ranges by tenant; waited is the longest time from a request to its grant since the
	// last check.
	got    map[string]int
	waited map[string]time.Duration
}

func newCrowd(t *testing.T, tenants map[string]int) *crowd {
	c := &crowd{t: t, now: time.Unix(1_700_000_000, 0), revision: 1, holders: map[string][]Holder{}, got: map[string]int{}, waited: map[string]time.Duration{}}
	c.d = Open(DefaultRules, NewBook(), 1, nil, nil, c.now)
	vips := 0
	for name, dips := range tenants {
		for len(c.holders[name]) < dips {
			vip := VIP{Addr: netip.AddrFrom4([4]byte{198, 18, byte(vips >> 8), byte(vips)})}
			conf := &Config{Tenant: name, Closed: *Closed(), PerDIP: Ranges}
			for i := range min(4, dips-len(c.holders[name])) {
				dip := netip.AddrFrom4([4]byte{10, byte(i), byte(vips >> 8), byte(vips)})
				conf.DIPs = append(conf.DIPs, dip)
				c.holders[name] = append(c.holders[name], Holder{vip, dip})
			}
			c.d.Configure(vip, conf, c.now)
			vips++
		}
	}
	return c
}

func (c *crowd) ask(tenant string, each int) {
	for i, h := range c.holders[tenant] {
		if i%each == 0 {
			c.d.Ask(h, 1, c.now)
		}
	}
}

// work commits a batch every millisecond; granted ranges are returned immediately.
func (c *crowd) work(lasts time.Duration, step func()) {
	for end := c.now.Add(lasts); c.now.Before(end); c.now = c.now.Add(time.Millisecond) {
		step()
		if !c.d.Ready(c.now) {
			continue
		}
		b, tally := c.d.Batch(c.now, 2048)
		if b != nil {
			c.revision++
			c.d.Committed(tally, c.revision, c.now)
		}
		for _, a := range c.d.Answers(c.now) {
			if a.Kind != Granted {
				continue
			}
			tenant := c.d.vips[a.Holder.VIP].tenant.name
			c.got[tenant] += len(a.Ranges)
			c.waited[tenant] = max(c.waited[tenant], c.now.Sub(a.Asked))
			c.d.Give(a.Holder, a.Ranges, c.now)
		}
	}
}

// TestTenantsShare: a tenant that always requests gets its share while others request, and does not
// delay them; alone it has no limit.
func TestTenantsShare(t *testing.T) {
	c := newCrowd(t, map[string]int{"abuser": 3000, "normal": 100})
	step := 0
	all := func() {
		if step++; step%10 == 0 {
			c.ask("abuser", 1)
		}
	}
	c.work(time.Second, all)
	if got := c.got["abuser"]; got < 10*DefaultRules.Rate {
		t.Errorf("alone it is leased %d ranges in a second, want at least %d: it has no limit", got, 10*DefaultRules.Rate)
	}
	i := 0
	both := func() {
		all()
		if i++; i%5 == 0 {
			c.d.Ask(c.holders["normal"][i/5%100], 1, c.now)
		}
	}
	c.work(100*time.Millisecond, both) // let the abuser use its burst
	clear(c.got)
	clear(c.waited)
	const lasts = 5 * time.Second
	c.work(lasts, both)
	most := int(lasts.Seconds()*float64(DefaultRules.Rate)) + DefaultRules.Burst
	if got := c.got["abuser"]; got > most || got < most/2 {
		t.Errorf("beside another tenant it is leased %d ranges in %v, want at most %d and at least half of that", got, lasts, most)
	}
	if w := c.waited["normal"]; w != 0 {
		t.Errorf("the other tenant waited for %v, want none: every ask is in the next batch", w)
	}
	if got := c.got["normal"]; got == 0 {
		t.Error("the other tenant got nothing")
	}
	// The other one stopped, so no share is left free.
	c.work(companyFor, all)
	clear(c.got)
	c.work(time.Second, all)
	if got := c.got["abuser"]; got < 10*DefaultRules.Rate {
		t.Errorf("alone again it is leased %d ranges in a second, want at least %d", got, 10*DefaultRules.Rate)
	}
}

// TestGivesLinger: returned ranges wait for a request, and not for long.
func TestGivesLinger(t *testing.T) {
	c := newCrowd(t, map[string]int{"shop": 2})
	a, b := c.holders["shop"][0], c.holders["shop"][1]
	grant := func() []Range {
		t.Helper()
		batch, tally := c.d.Batch(c.now, 100)
		if batch == nil {
			t.Fatal("nothing is to be committed")
		}
		c.revision++
		c.d.Committed(tally, c.revision, c.now)
		for _, answer := range c.d.Answers(c.now) {
			if answer.Kind == Granted {
				return answer.Ranges
			}
		}
		return nil
	}
	c.d.Ask(a, 1, c.now)
	if !c.d.Ready(c.now) {
		t.Fatal("an ask waits")
	}
	got := grant()
	c.d.Give(a, got[:1], c.now)
	if due := c.d.Due(c.now); c.d.Ready(c.now) || due.Sub(c.now) != DefaultRules.Linger {
		t.Fatalf("what is given back is due in %v, want %v", due.Sub(c.now), DefaultRules.Linger)
	}
	c.d.Ask(b, 1, c.now)
	if !c.d.Ready(c.now) {
		t.Fatal("an ask waits")
	}
	grant()
	if c.d.Waiting() {
		t.Fatal("what was given back is not in the batch of the ask")
	}
	c.d.Give(a, got[1:], c.now)
	c.now = c.now.Add(DefaultRules.Linger)
	if !c.d.Ready(c.now) {
		t.Fatalf("what is given back waits for longer than %v", DefaultRules.Linger)
	}
	grant()
}

// TestTurnsAreByWeight serves tenants of random weights that always request, some of which pause:
// while the same tenants request, each has its part of the turns by weight, to within one turn for
// each tenant.
func TestTurnsAreByWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := DefaultRules
		rules.Rate, rules.Burst, rules.DIPRate = math.MaxInt32, math.MaxInt32, 0
		q := turns{rules: &rules, tenants: map[string]*tenant{}}
		now := time.Unix(1, 0)
		ask := func(of *tenant) { q.enqueue(&request{dip: &dip{vip: &vip{tenant: of}}}) }
		var all []*tenant
		for i := range rapid.IntRange(1, 6).Draw(t, "tenants") {
			of := q.tenantOf(fmt.Sprint(i))
			q.weigh(of, rapid.Uint32Range(0, 20).Draw(t, "weight"))
			all = append(all, of)
		}
		for range rapid.IntRange(1, 4).Draw(t, "phases") {
			var asks []*tenant
			sum := 0.0
			for _, of := range all {
				if rapid.Bool().Draw(t, "asks") {
					asks, sum = append(asks, of), sum+of.weight
				}
			}
			if len(asks) == 0 {
				continue
			}
			for _, of := range asks {
				ask(of)
			}
			served, n := map[*tenant]int{}, rapid.IntRange(1, 300).Draw(t, "turns")
			for i := range n {
				of := q.nextAsk(now).dip.vip.tenant
				served[of]++
				ask(of)
				for _, other := range asks {
					want := float64(i+1) * other.weight / sum
					if got := float64(served[other]); math.Abs(got-want) > float64(len(asks)) {
						t.Fatalf("tenant %s of weight %v had %v of %d turns, want %v", other.name, other.weight, got, i+1, want)
					}
				}
			}
			for q.nextAsk(now) != nil {
			}
		}
	})
}

// TestRateIsByWeight: of two tenants that always request, the one of weight 3 gets about three
// times as much; a tenant that waits for its next portion loses a part of one.
func TestRateIsByWeight(t *testing.T) {
	c := newCrowd(t, map[string]int{"heavy": 3000, "light": 3000})
	for _, v := range c.d.vips {
		if v.tenant.name == "heavy" {
			conf := v.conf
			conf.Weight = 3
			c.d.Configure(v.name, &conf, c.now)
		}
	}
	step := 0
	both := func() {
		if step++; step%10 == 0 {
			c.ask("heavy", 1)
			c.ask("light", 1)
		}
	}
	c.work(time.Second, both)
	clear(c.got)
	c.work(4*time.Second, both)
	if ratio := float64(c.got["heavy"]) / float64(c.got["light"]); ratio < 2.5 || ratio > 3.6 {
		t.Errorf("heavy was leased %d ranges, light %d: %.2f times as much, want 3", c.got["heavy"], c.got["light"], ratio)
	}
}
