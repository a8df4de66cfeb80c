package snat

import (
	"net/netip"
	"slices"
	"time"
)

// Rules configures a Desk. Amounts are in ranges.
type Rules struct {
	// Quarantine is how long a freed range rests. Silence is how long an eligible mux may leave a
	// revision unacknowledged.
	Quarantine, Silence time.Duration
	// Opening replaces Silence for muxes that have not reported yet after an allocator was opened,
	// because their acknowledgements arrive through managers whose relays are being set up.
	Opening time.Duration
	// First is the grant for the first request of a DIP, MaxGrant the maximum for one request,
	// PerDIP the maximum for a DIP unless its tenant's limits are lower.
	First, MaxGrant, PerDIP int
	// Linger is how long returned ranges wait for a batch with requests, because no request waits
	// for them.
	Linger time.Duration
	// Rate is the number of ranges per second for a tenant of weight 1 while others request, Burst
	// the number that it gets immediately. A tenant alone has no limit.
	Rate, Burst int
	// DIPRate and DIPBurst are the same for each DIP, whether or not others request (Ananta section
	// 3.6.1 limits the rate of each VM), so that no server uses more than a small part of its
	// tenant's rate. 0: no limit.
	DIPRate, DIPBurst int
}

// DefaultRules are the rules of managers: a DIP may have 1,024 ports, each for one connection per
// destination. The share of 32,768 ranges is 1,024 of the largest grants a second, and a fifth of
// the capacity of managers. A DIP's share is a 32nd of that, and its burst is twice its default
// maximum.
var DefaultRules = Rules{
	Quarantine: Quarantine, Silence: 20 * time.Millisecond, Opening: 500 * time.Millisecond, First: 2, MaxGrant: 32, PerDIP: 128, Linger: 10 * time.Millisecond, Rate: 32768, Burst: 16384,
	DIPRate: 1024, DIPBurst: 256,
}

// Config is the configuration of a VIP by the objects.
type Config struct {
	Tenant string
	DIPs   []netip.Addr
	Closed Bitmap
	// PerDIP and PerTenant are limits in ranges. 0 means Rules.PerDIP for PerDIP, and no limit for
	// PerTenant.
	PerDIP, PerTenant int
	// Quarantine is how long freed ranges rest, at most MaxQuarantine; 0: Rules.Quarantine.
	Quarantine time.Duration
	// Weight is that of the tenant among those that request (lb.Tenant.Weight), the same for all
	// its VIPs; 0 is 1.
	Weight uint32
}

// Desk allocates leases during one term of the leader. It treats its decisions as done. When a
// commit fails or its result is unknown, the Desk is discarded and a new one is opened from the
// lease store.
type Desk struct {
	rules  Rules
	vips   map[VIP]*vip
	number uint64
	counts Counts
	turns
	telling
}

type vip struct {
	name VIP
	// reclaimed is when its DIPs were last requested to return unused ranges.
	reclaimed time.Time
	block     *Block
	tenant    *tenant
	conf      Config
	dips      []*dip // by Owner-1; nil: none
	byDIP     map[netip.Addr]*dip
}

// dip is the state of a holder.
type dip struct {
	holder  Holder
	vip     *vip
	owner   Owner
	removed bool
	demand  Demand
	// ranges are all its ranges; usable are those that its host may have been granted.
	ranges    []Range
	usable    Bitmap
	ask, give *request
	// left is the number of ranges that it may still get, at a time; below 0 it has used some of
	// its future share.
	left float64
	at   time.Time
	// shrinks: it has more ranges than allowed, and returns all but keep.
	shrinks bool
	keep    int
}

// request waits for its turn, and then for its commit.
type request struct {
	dip    *dip
	at     time.Time // arrival
	give   bool
	want   int
	adopt  []Range
	ranges []Range
	// until is when a request continues whose DIP used its share.
	until time.Time
	// all: all ranges of the DIP are to be returned.
	all bool
}

// Open returns an allocator for a lease store at a revision. Freed ranges rest again, for the
// quarantine in configs, with which the allocator will be configured, because clocks of leaders
// differ. All given muxes count as eligible until they were silent.
func Open(rules Rules, book *Book, revision int64, muxes []string, configs map[VIP]*Config, now time.Time) *Desk {
	d := &Desk{rules: rules, vips: map[VIP]*vip{}, number: book.Last()}
	d.turns = turns{rules: &d.rules, tenants: map[string]*tenant{}}
	d.telling.open(rules, revision, muxes, now)
	for _, name := range book.VIPs() {
		v, p := d.vipOf(name), book.Page(name)
		if c := configs[name]; c != nil {
			v.conf.Quarantine = c.Quarantine
		}
		p.EachLease(func(l Lease) {
			h := d.dipOf(v, l.DIP)
			v.block.Hold(l.Range, h.owner)
			h.ranges = append(h.ranges, l.Range)
			h.usable.Set(l.Range)
			v.tenant.held++
		})
		for _, r := range p.Rests() {
			if rests := d.quarantine(v); v.block.Owner(r.Range) == 0 && r.At.Add(restMargin*rests).After(now) {
				v.block.Rest(r.Range, now.Add(rests))
			}
		}
	}
	return d
}

// quarantine returns how long freed ranges of a VIP rest.
func (d *Desk) quarantine(v *vip) time.Duration {
	if v.conf.Quarantine > 0 {
		return min(v.conf.Quarantine, MaxQuarantine)
	}
	return d.rules.Quarantine
}

// vipOf returns the state of a VIP, and creates it if needed; one that is not configured has no
// DIPs.
func (d *Desk) vipOf(name VIP) *vip {
	v := d.vips[name]
	if v == nil {
		closed := Closed()
		v = &vip{name: name, block: NewBlock(closed), tenant: d.tenantOf(""), byDIP: map[netip.Addr]*dip{}, conf: Config{Closed: *closed}}
		d.vips[name] = v
	}
	return v
}

func (d *Desk) dipOf(v *vip, addr netip.Addr) *dip {
	h := v.byDIP[addr]
	if h == nil {
		i := slices.Index(v.dips, nil)
		if i < 0 {
			i = len(v.dips)
			v.dips = append(v.dips, nil)
		}
		h = &dip{holder: Holder{v.name, addr}, vip: v, owner: Owner(i + 1), removed: true, left: float64(d.rules.DIPBurst)}
		v.dips[i], v.byDIP[addr] = h, h
	}
	return h
}

// Configure applies the configuration of a VIP; nil: it no longer has SNAT. It takes back the
// ranges of removed DIPs, and requests those in which an endpoint now listens from their holders.
func (d *Desk) Configure(name VIP, c *Config, now time.Time) {
	v := d.vipOf(name)
	configured := c != nil
	if !configured {
		c = &Config{Closed: *Closed(), Tenant: v.tenant.name, Quarantine: v.conf.Quarantine}
	}
	if t := d.tenantOf(c.Tenant); t != v.tenant {
		n := v.block.Leased()
		v.tenant.held -= n
		t.held += n
		v.tenant = t
	}
	if configured {
		d.weigh(v.tenant, c.Weight)
	}
	was := v.conf.Closed
	v.conf = *c
	v.block.Close(&c.Closed)
	wanted := make(map[netip.Addr]bool, len(c.DIPs))
	for _, addr := range c.DIPs {
		wanted[addr] = true
		d.dipOf(v, addr).removed = false
	}
	for _, h := range v.dips {
		if h == nil {
			continue
		}
		if !wanted[h.holder.DIP] {
			h.removed = true
			if len(h.ranges) > 0 {
				d.giving(h, now).all = true
			}
			d.forget(h)
			continue
		}
		var leave []Range
		for _, r := range h.ranges {
			if c.Closed.Has(r) && !was.Has(r) && h.usable.Has(r) {
				leave = append(leave, r)
			}
		}
		if len(leave) > 0 {
			d.say(Answer{Holder: h.holder, Kind: Leave, Ranges: leave})
		}
	}
	if len(c.DIPs) == 0 && len(v.byDIP) == 0 && v.block.Resting() == 0 {
		delete(d.vips, name)
	}
}

// forget deletes a removed DIP that has no ranges.
func (d *Desk) forget(h *dip) {
	if h.removed && len(h.ranges) == 0 && h.ask == nil && h.give == nil {
		delete(h.vip.byDIP, h.holder.DIP)
		h.vip.dips[h.owner-1] = nil
	}
}

// known returns a holder that may request; nil: the DIP does not belong to the VIP.
func (d *Desk) known(h Holder) *dip {
	if v := d.vips[h.VIP]; v != nil {
		if known := v.byDIP[h.DIP]; known != nil && !known.removed {
			return known
		}
	}
	return nil
}

// Ask requests more ranges, at least the wanted number; false: the DIP does not belong to the VIP.
// A DIP has at most one pending request; another one before the answer changes nothing.
func (d *Desk) Ask(h Holder, want int, now time.Time) bool {
	k := d.known(h)
	if k == nil {
		return false
	}
	d.counts.Asks++
	if k.ask != nil {
		d.counts.Repeated++
		return true
	}
	k.ask = &request{dip: k, at: now, want: max(1, want)}
	d.enqueue(k.ask)
	return true
}

// Sync answers with all ranges of a DIP. First it leases the ranges to it that its host reports as
// held and that are free, because a restored store lacks them. false: the DIP does not belong to
// the VIP.
func (d *Desk) Sync(h Holder, held []Range, now time.Time) bool {
	k := d.known(h)
	if k == nil {
		return false
	}
	b := k.vip.block
	var adopt []Range
	for _, r := range held {
		if r < Ranges && b.free.Has(r) {
			adopt = append(adopt, r)
		}
	}
	if len(adopt) > 0 {
		d.enqueue(&request{dip: k, at: now, adopt: adopt})
		return true
	}
	d.tell(now, d.revision, Answer{Holder: h, Kind: All})
	return true
}

// Give ends leases of a DIP. Ranges that it does not hold are acknowledged as if it had just
// returned them.
func (d *Desk) Give(h Holder, ranges []Range, now time.Time) {
	v := d.vips[h.VIP]
	if v == nil || v.byDIP[h.DIP] == nil {
		d.say(Answer{Holder: h, Kind: Taken, Ranges: ranges, Revision: d.revision})
		return
	}
	g := d.giving(v.byDIP[h.DIP], now)
	for _, r := range ranges {
		if r < Ranges && !slices.Contains(g.ranges, r) {
			g.ranges = append(g.ranges, r)
		}
	}
}

// giving returns the pending request of a DIP that returns ranges.
func (d *Desk) giving(k *dip, now time.Time) *request {
	if k.give == nil {
		k.give = &request{dip: k, at: now, give: true}
		d.enqueue(k.give)
	}
	return k.give
}

// Due returns when a batch or Tick is due if nothing else arrives; zero: nothing waits.
func (d *Desk) Due(now time.Time) time.Time {
	silence, batch := d.telling.due(), d.turns.due(now)
	if silence.IsZero() || !batch.IsZero() && batch.Before(silence) {
		return batch
	}
	return silence
}

// Batch takes requests, of tenants in turn and of each in order of arrival, until about most ranges
// change owner, or far fewer while several tenants request. Requests that need no commit are
// answered. nil: there is nothing to commit.
func (d *Desk) Batch(now time.Time, most int) (*Batch, *Tally) {
	b := &Batch{Number: d.number + 1, At: now.Truncate(time.Millisecond)}
	t := &Tally{at: map[VIP]int{}}
	d.resume(now)
	for n := 0; n < most; {
		r := d.next(now)
		if r == nil {
			break
		}
		took := d.serve(b, t, r, now)
		if !r.give {
			d.charge(r.dip, took)
		}
		if n += 1 + took; n >= most/sharedPart && d.shared(now) {
			break
		}
	}
	if len(b.Sections) == 0 {
		return nil, nil
	}
	d.number++
	return b, t
}

// Tally holds the answers of a batch until it is committed.
type Tally struct {
	at      map[VIP]int // sections by VIP
	answers []Answer
	// said holds answers that may be sent before muxes acknowledge.
	said []Answer
}

func (b *Batch) section(t *Tally, v VIP) *Section {
	i, ok := t.at[v]
	if !ok {
		i = len(b.Sections)
		t.at[v] = i
		b.Sections = append(b.Sections, Section{VIP: v})
	}
	return &b.Sections[i]
}

// serve handles a request and returns the number of ranges that change owner.
func (d *Desk) serve(b *Batch, t *Tally, r *request, now time.Time) int {
	switch {
	case r.give:
		return d.serveGive(b, t, r, now)
	case r.adopt != nil:
		return d.serveAdopt(b, t, r, now)
	default:
		return d.serveAsk(b, t, r, now)
	}
}

func (d *Desk) serveGive(b *Batch, t *Tally, r *request, now time.Time) int {
	k := r.dip
	k.give = nil
	ranges := r.ranges
	if r.all && k.removed {
		ranges = slices.Clone(k.ranges)
	}
	n := 0
	for _, x := range ranges {
		if k.vip.block.Owner(x) != k.owner {
			continue
		}
		k.vip.block.Give(x, now.Add(d.quarantine(k.vip)))
		k.ranges = slices.DeleteFunc(k.ranges, func(have Range) bool { return have == x })
		k.usable.Clear(x)
		k.vip.tenant.held--
		s := b.section(t, k.vip.name)
		s.Freed = append(s.Freed, x)
		n++
	}
	d.counts.Freed += uint64(n)
	k.shrinks = k.shrinks && len(k.ranges) > k.keep
	switch a := (Answer{Holder: k.holder, Kind: Taken, Ranges: ranges, Revision: d.revision}); {
	case n > 0:
		t.said = append(t.said, a)
	case len(ranges) > 0:
		d.say(a)
	}
	d.forget(k)
	return n
}

func (d *Desk) serveAdopt(b *Batch, t *Tally, r *request, now time.Time) int {
	k, n := r.dip, 0
	a := Answer{Holder: k.holder, Kind: All}
	for _, x := range r.adopt {
		if k.removed || !k.vip.block.free.Has(x) {
			continue
		}
		k.vip.block.Hold(x, k.owner)
		d.hold(b, t, k, x)
		a.Ranges = append(a.Ranges, x)
		n++
	}
	if n > 0 {
		t.answers = append(t.answers, a)
	} else {
		d.tell(now, d.revision, a)
	}
	return n
}

func (d *Desk) hold(b *Batch, t *Tally, k *dip, x Range) {
	k.ranges = append(k.ranges, x)
	k.vip.tenant.held++
	s := b.section(t, k.vip.name)
	s.Leased = append(s.Leased, Lease{DIP: k.holder.DIP, Range: x})
}

func (d *Desk) serveAsk(b *Batch, t *Tally, r *request, now time.Time) int {
	k := r.dip
	if k.removed {
		k.ask = nil
		d.forget(k)
		return 0
	}
	v := k.vip
	v.block.Tick(now)
	limit := d.limit(v)
	size := max(r.want, k.demand.Ask(now, max(r.want, d.rules.First), d.rules.MaxGrant))
	size = min(size, d.rules.MaxGrant, limit-len(k.ranges))
	reason := ReasonDIPLimit
	if n := v.conf.PerTenant; n > 0 && n-v.tenant.held < size {
		size, reason = n-v.tenant.held, ReasonTenantLimit
	}
	a := Answer{Holder: k.holder, Kind: Granted, Asked: r.at, Served: now}
	for range max(0, size) {
		x, ok := v.block.Take(k.owner)
		if !ok {
			reason = ReasonExhausted
			d.reclaim(k, now)
			break
		}
		d.hold(b, t, k, x)
		a.Ranges = append(a.Ranges, x)
	}
	if len(a.Ranges) == 0 {
		k.ask = nil
		d.counts.Refused[reason]++
		d.say(Answer{Holder: k.holder, Kind: Refused, Reason: reason})
		return 0
	}
	k.shrinks = false // later ranges are not requested back
	d.counts.Grants++
	d.counts.Granted += uint64(len(a.Ranges))
	t.answers = append(t.answers, a)
	return len(a.Ranges)
}

// Committed records that a batch is stored at a revision. Muxes must acknowledge it before its
// grants are sent.
func (d *Desk) Committed(t *Tally, revision int64, now time.Time) {
	d.revision = revision
	for _, a := range t.said {
		a.Revision = revision
		d.say(a)
	}
	d.tell(now, revision, t.answers...)
}

// Answers removes and returns the pending answers, in order.
func (d *Desk) Answers(now time.Time) []Answer {
	for _, a := range d.release() {
		v := d.vips[a.Holder.VIP]
		if v == nil || v.byDIP[a.Holder.DIP] == nil {
			continue
		}
		k := v.byDIP[a.Holder.DIP]
		switch a.Kind {
		case Granted:
			k.ask = nil
			a.Ranges = slices.DeleteFunc(a.Ranges, func(r Range) bool { return v.block.Owner(r) != k.owner })
			for _, r := range a.Ranges {
				k.usable.Set(r)
			}
			d.forget(k)
		case All:
			if k.removed {
				continue
			}
			for _, r := range a.Ranges {
				if v.block.Owner(r) == k.owner {
					k.usable.Set(r)
				}
			}
			a.Ranges = nil
			var leave []Range
			for _, r := range k.ranges {
				if k.usable.Has(r) {
					a.Ranges = append(a.Ranges, r)
					if v.conf.Closed.Has(r) {
						leave = append(leave, r)
					}
				}
			}
			d.say(a)
			if len(leave) > 0 {
				d.say(Answer{Holder: a.Holder, Kind: Leave, Ranges: leave})
			}
			if k.shrinks {
				d.say(Answer{Holder: a.Holder, Kind: Shrink, Keep: k.keep})
			}
			continue
		}
		d.say(a)
	}
	out := d.said
	d.said = nil
	return out
}
