package snat

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// leasedAt is the number of ranges that a DIP got at a time.
type leasedAt struct {
	at     time.Time
	ranges int
}

// TestDIPRate: for any requests of DIPs, no DIP gets more than its rate and burst allow, every
// request is answered within the time of the DIP's own rate, and no DIP waits for another DIP's
// rate.
func TestDIPRate(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rate, burst := rapid.SampledFrom([]int{64, 1024}).Draw(rt, "rate"), rapid.SampledFrom([]int{1, 16, 256}).Draw(rt, "burst")
		c := newCrowd(t, map[string]int{"shop": rapid.IntRange(1, 9).Draw(rt, "dips"), "other": rapid.IntRange(0, 2).Draw(rt, "others")})
		c.d.rules.DIPRate, c.d.rules.DIPBurst = rate, burst
		var all []Holder
		for _, of := range []string{"shop", "other"} {
			for _, h := range c.holders[of] {
				c.d.vips[h.VIP].byDIP[h.DIP].left = float64(burst)
				all = append(all, h)
			}
		}
		grants, asked := map[Holder][]leasedAt{}, map[Holder]time.Time{}
		greedy := all[0]
		step := func() {
			c.now = c.now.Add(time.Millisecond)
			if c.d.Ready(c.now) {
				if b, tally := c.d.Batch(c.now, 2048); b != nil {
					c.revision++
					c.d.Committed(tally, c.revision, c.now)
				}
			}
			for _, a := range c.d.Answers(c.now) {
				if a.Kind != Granted {
					continue
				}
				grants[a.Holder] = append(grants[a.Holder], leasedAt{c.now, len(a.Ranges)})
				// It owes at most one grant.
				if waited, most := c.now.Sub(asked[a.Holder]), time.Duration(float64(DefaultRules.MaxGrant+1)/float64(rate)*float64(time.Second))+2*time.Millisecond; waited > most {
					rt.Fatalf("%v waited for %v, at most %v may pass", a.Holder, waited, most)
				}
				delete(asked, a.Holder)
				c.d.Give(a.Holder, a.Ranges, c.now)
			}
		}
		ask := func(h Holder) {
			if _, waits := asked[h]; !waits {
				asked[h] = c.now
				c.d.Ask(h, rapid.IntRange(1, DefaultRules.MaxGrant).Draw(rt, "want"), c.now)
			}
		}
		for range rapid.IntRange(50, 400).Draw(rt, "steps") {
			ask(greedy)
			for _, h := range all[1:] {
				if rapid.IntRange(0, 19).Draw(rt, "asks") == 0 {
					ask(h)
				}
			}
			step()
		}
		for range 2 * int(time.Second/time.Millisecond) {
			if step(); len(asked) == 0 {
				break
			}
		}
		if len(asked) > 0 || c.d.Waiting() && len(c.d.parked) > 0 {
			rt.Fatalf("asks that nothing answers: %v", asked)
		}
		for h, of := range grants {
			for i := range of {
				sum := 0
				for j := i; j < len(of); j++ {
					sum += of[j].ranges
					if most := float64(burst+DefaultRules.MaxGrant) + float64(rate)*of[j].at.Sub(of[i].at).Seconds(); float64(sum) > most {
						rt.Fatalf("%v was leased %d ranges in %v, at most %.0f may be", h, sum, of[j].at.Sub(of[i].at), most)
					}
				}
			}
		}
	})
}

// TestOneDIPLeavesTheTenantsRate: a DIP that requests the maximum as often as it can, while another
// tenant requests too, leaves the rest of its tenant's share to the tenant's other DIPs, which do
// not wait.
func TestOneDIPLeavesTheTenantsRate(t *testing.T) {
	c := newCrowd(t, map[string]int{"shop": 4, "other": 1})
	c.d.rules.Rate, c.d.rules.Burst = 4096, 1024
	greedy, leased, waited := c.holders["shop"][0], 0, time.Duration(0)
	const lasts = 4 * time.Second
	for n := range int(lasts / time.Millisecond) {
		c.now = c.now.Add(time.Millisecond)
		c.d.Ask(greedy, DefaultRules.MaxGrant, c.now)
		if n%200 == 0 {
			c.d.Ask(c.holders["other"][0], 1, c.now)
			for _, h := range c.holders["shop"][1:] {
				c.d.Ask(h, 1, c.now)
			}
		}
		if b, tally := c.d.Batch(c.now, 2048); b != nil {
			c.revision++
			c.d.Committed(tally, c.revision, c.now)
		}
		for _, a := range c.d.Answers(c.now) {
			switch {
			case a.Kind != Granted:
				continue
			case a.Holder == greedy:
				leased += len(a.Ranges)
			default:
				waited = max(waited, c.now.Sub(a.Asked))
			}
			c.d.Give(a.Holder, a.Ranges, c.now)
		}
	}
	if most := DefaultRules.DIPRate*int(lasts/time.Second) + DefaultRules.DIPBurst + DefaultRules.MaxGrant; leased > most || leased < most/2 {
		t.Errorf("it was leased %d ranges in %v, want at most %d and at least half of that", leased, lasts, most)
	}
	if waited != 0 {
		t.Errorf("another DIP waited for %v, want none: every ask is in the next batch", waited)
	}
}
