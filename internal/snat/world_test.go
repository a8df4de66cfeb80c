package snat

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// world is a leader, its store, muxes and hosts; anything may fail between any two steps. It
// guarantees one assumption: a host learns that a DIP was taken from it before the quarantine is
// over.
type world struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	now  time.Time

	// The store: batches and pages as bytes.
	revision int64
	log      map[uint64][]byte
	pages    map[VIP][]byte
	history  [][]byte // every batch, by revision-1: the stream to muxes

	desk     *Desk
	openedAt int64
	book     *Book
	vip      VIP
	wanted   map[netip.Addr]bool
	closed   *Bitmap
	// perDIP and perTenant are limits, which change.
	perDIP, perTenant int
	hosts             map[netip.Addr]*worldHost
	muxes             map[string]*worldMux
	granted           int
}

type worldHost struct {
	stock *Stock
	up    []Said // in flight to the leader
	down  []heard
}

type heard struct {
	answer Answer
	epoch  int64
	gone   bool // the plan reports that the DIP does not belong to the VIP
}

type worldMux struct {
	book *Book
	has  int64
	away bool
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_700_000_000, 0), log: map[uint64][]byte{}, pages: map[VIP][]byte{},
		vip: VIP{Addr: netip.MustParseAddr("203.0.113.10")}, wanted: map[netip.Addr]bool{}, hosts: map[netip.Addr]*worldHost{}, muxes: map[string]*worldMux{},
	}
	// Few ranges, so that they are reused often.
	w.closed = Closed([2]uint16{1024 + 40*8, 65535})
	w.perDIP = 20
	for i := range 4 {
		dip := netip.AddrFrom4([4]byte{10, 20, 1, byte(11 + i)})
		w.hosts[dip] = &worldHost{stock: w.newStock()}
		w.wanted[dip] = true
	}
	for i := range 3 {
		w.muxes[fmt.Sprintf("mux%d", i)] = &worldMux{book: NewBook()}
	}
	w.elect()
	return w
}

func (w *world) newStock() *Stock { return NewStock(DefaultStockRules) }

// load returns a lease store of the stored data.
func (w *world) load() *Book {
	b := NewBook()
	for _, raw := range w.pages {
		p, err := UnpackPage(raw)
		if err != nil {
			w.t.Fatalf("seed %d: %v", w.seed, err)
		}
		b.Load(p)
	}
	numbers := []uint64{}
	for n := range w.log {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		w.fold(b, w.log[n])
	}
	return b
}

func (w *world) fold(b *Book, raw []byte) {
	var batch Batch
	if err := batch.Unpack(raw); err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
	if err := b.Fold(&batch, len(raw)); err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
}

// elect starts a new leader.
func (w *world) elect() {
	w.book = w.load()
	names := []string{}
	for name := range w.muxes {
		names = append(names, name)
	}
	w.desk = Open(DefaultRules, w.book, w.revision, names, nil, w.now)
	w.openedAt = w.revision
	w.configure()
	for _, h := range w.hosts {
		h.up = nil // the relay disconnected
	}
}

func (w *world) configure() {
	c := &Config{Tenant: "shop", Closed: *w.closed, PerDIP: w.perDIP, PerTenant: w.perTenant}
	for dip := range w.wanted {
		c.DIPs = append(c.DIPs, dip)
	}
	w.desk.Configure(w.vip, c, w.now)
	w.desk.Shrink()
}

func (w *world) host() (netip.Addr, *worldHost) {
	dip := netip.AddrFrom4([4]byte{10, 20, 1, byte(11 + w.rng.IntN(len(w.hosts)))})
	return dip, w.hosts[dip]
}

func (w *world) mux() (string, *worldMux) {
	name := fmt.Sprintf("mux%d", w.rng.IntN(len(w.muxes)))
	return name, w.muxes[name]
}

func (w *world) step() {
	switch n := w.rng.IntN(100); {
	case n < 20:
		w.tick()
	case n < 40:
		w.deliverUp()
	case n < 58:
		w.commit()
	case n < 72:
		w.tellMux()
	case n < 86:
		w.answers()
		_, h := w.host()
		w.deliverDown(h)
	case n < 88: // the host's agent restarts
		_, h := w.host()
		h.stock, h.up = w.newStock(), nil
		h.down = slices.DeleteFunc(h.down, func(d heard) bool { return !d.gone })
	case n < 90: // messages in flight are lost
		_, h := w.host()
		h.up, h.down = nil, slices.DeleteFunc(h.down, func(d heard) bool { return !d.gone })
		h.stock.Afresh()
	case n < 92:
		_, m := w.mux()
		if m.away = !m.away; m.away {
			m.book, m.has = NewBook(), 0
		}
	case n < 94:
		w.elect()
	case n < 96:
		w.change()
	default:
		w.pass()
	}
	w.answers()
	w.check()
}

// tick lets a host send its due message.
func (w *world) tick() {
	dip, h := w.host()
	if w.rng.IntN(3) == 0 {
		h.stock.Low()
	}
	usable, _ := h.stock.Usable()
	for _, r := range usable {
		if w.rng.IntN(2) == 0 {
			h.stock.Used(r, w.now)
		}
	}
	if !w.wanted[dip] {
		return
	}
	if said, ok := h.stock.Tick(w.now); ok {
		h.up = append(h.up, said)
	}
}

func (w *world) deliverUp() {
	dip, h := w.host()
	if len(h.up) == 0 {
		return
	}
	said, holder := h.up[0], Holder{w.vip, dip}
	h.up = h.up[1:]
	if len(said.Return) > 0 {
		w.desk.Give(holder, said.Return, w.now)
	}
	if said.Ask {
		w.desk.Ask(holder, 1, w.now)
	}
	if said.Sync {
		w.desk.Sync(holder, said.Held, w.now)
	}
}

// commit stores a batch; the leader may die before or after.
func (w *world) commit() {
	b, tally := w.desk.Batch(w.now, 1+w.rng.IntN(40))
	if b == nil {
		return
	}
	fate := w.rng.IntN(12)
	if fate == 0 {
		w.elect() // nothing was stored
		return
	}
	raw := b.Pack(nil)
	w.revision++
	w.history = append(w.history, raw)
	w.log[b.Number] = raw
	if w.rng.IntN(4) == 0 { // as Save does when the log is long
		p := w.book.Page(w.vip)
		if p != nil {
			w.pages[w.vip] = p.Pack(nil)
			for n := range w.log {
				if n <= p.Through {
					delete(w.log, n)
				}
			}
		}
	}
	if fate == 1 {
		w.elect() // it was stored, and no answer was sent
		return
	}
	w.fold(w.book, raw)
	w.desk.Committed(tally, w.revision, w.now)
}

func (w *world) tellMux() {
	name, m := w.mux()
	if m.away {
		return
	}
	if m.has == 0 {
		m.book, m.has = w.load(), w.revision // a snapshot
	}
	for upTo := m.has + int64(w.rng.IntN(4)); m.has < min(upTo, w.revision); m.has++ {
		w.fold(m.book, w.history[m.has])
	}
	w.desk.Ack(name, m.has)
}

func (w *world) answers() {
	w.desk.Tick(w.now)
	for _, a := range w.desk.Answers(w.now) {
		h := w.hosts[a.Holder.DIP]
		h.down = append(h.down, heard{answer: a, epoch: 1})
		if a.Kind == Granted {
			w.granted += len(a.Ranges)
		}
	}
}

func (w *world) deliverDown(h *worldHost) {
	if len(h.down) == 0 {
		return
	}
	d := h.down[0]
	h.down = h.down[1:]
	if d.gone {
		h.stock = w.newStock()
		return
	}
	h.stock.Hear(d.answer, d.epoch, w.now)
}

// change adds or removes a DIP, or an endpoint, or changes limits.
func (w *world) change() {
	if w.rng.IntN(3) == 0 {
		w.perDIP, w.perTenant = []int{20, 20, 6, 2}[w.rng.IntN(4)], []int{0, 0, 12, 3}[w.rng.IntN(4)]
	} else if w.rng.IntN(3) == 0 {
		w.closed = Closed([2]uint16{1024 + 40*8, 65535}, [2]uint16{uint16(1024 + w.rng.IntN(320)), 1400})
		if w.rng.IntN(2) == 0 {
			w.closed = Closed([2]uint16{1024 + 40*8, 65535})
		}
	} else {
		dip, h := w.host()
		if w.wanted[dip] {
			delete(w.wanted, dip)
			h.down = append(h.down, heard{gone: true})
		} else if !slices.ContainsFunc(h.down, func(d heard) bool { return d.gone }) {
			w.wanted[dip] = true
		}
	}
	w.configure()
}

// pass advances the time. Before a long step, hosts receive all messages.
func (w *world) pass() {
	if w.rng.IntN(3) > 0 {
		w.now = w.now.Add(time.Duration(w.rng.IntN(50)) * time.Millisecond)
		return
	}
	for _, h := range w.hosts {
		for len(h.down) > 0 {
			w.deliverDown(h)
		}
	}
	w.now = w.now.Add(time.Duration(w.rng.IntN(int(Quarantine / 2))))
	w.check()
	for _, h := range w.hosts {
		for len(h.down) > 0 {
			w.deliverDown(h)
		}
	}
}

// check: no range is at two hosts, and every mux that grants wait for maps each usable range of a
// host to that host.
func (w *world) check() {
	at := map[Range]netip.Addr{}
	stored := w.load().Page(w.vip)
	for dip, h := range w.hosts {
		usable, leaving := h.stock.Usable()
		for r := range h.stock.ranges {
			if other, twice := at[r]; twice {
				w.t.Fatalf("seed %d: range %s is at %s and %s", w.seed, r, dip, other)
			}
			at[r] = dip
		}
		for _, r := range append(usable, leaving...) {
			if have, ok := stored.DIP(r); ok && have != dip {
				w.t.Fatalf("seed %d: %s uses range %s, which is stored as that of %s", w.seed, dip, r, have)
			} else if !ok {
				continue // it was taken, and the host has not received that yet
			}
			for name, m := range w.muxes {
				if m.away || m.has == 0 || m.has < w.openedAt || !w.desk.Eligible(name) {
					continue
				}
				p := m.book.Page(w.vip)
				if p == nil {
					w.t.Fatalf("seed %d: %s uses range %s, of which %s knows nothing", w.seed, dip, r, name)
				}
				if have, _ := p.DIP(r); have != dip {
					w.t.Fatalf("seed %d: %s uses range %s, which %s takes for that of %v", w.seed, dip, r, name, have)
				}
			}
		}
	}
	leased := 0
	stored2 := map[netip.Addr]int{}
	if stored != nil {
		stored.EachLease(func(l Lease) { leased++; stored2[l.DIP]++ })
		if leased != stored.Leased() {
			w.t.Fatalf("seed %d: %d leases, counted as %d", w.seed, leased, stored.Leased())
		}
	}
	for dip, n := range stored2 {
		if n > 20 {
			w.t.Fatalf("seed %d: %s has %d ranges, the limit is 20", w.seed, dip, n)
		}
	}
}

// TestNoPortIsHeldTwice: no port has two holders, whatever fails between any two steps.
func TestNoPortIsHeldTwice(t *testing.T) {
	seeds := 100
	if testing.Short() {
		seeds = 20
	}
	granted := 0
	for seed := range uint64(seeds) {
		w := newWorld(t, seed)
		for range 600 {
			w.step()
		}
		w.settle()
		granted += w.granted
	}
	if granted < seeds*20 {
		t.Fatalf("%d ranges were granted in %d worlds: too few to prove anything", granted, seeds)
	}
}

// settle ends all failures; then every DIP gets ranges, unless others hold them all.
func (w *world) settle() {
	w.perDIP, w.perTenant = 20, 0
	w.closed = Closed([2]uint16{1024 + 80*8, 65535})
	for _, m := range w.muxes {
		m.away = false
	}
	w.configure()
	for range 40 {
		for dip, h := range w.hosts {
			h.stock.Low()
			if said, ok := h.stock.Tick(w.now); ok && w.wanted[dip] {
				h.up = append(h.up, said)
			}
		}
		for range 60 {
			w.deliverUp()
			w.tellMux()
			w.settleCommit()
			w.answers()
			for _, h := range w.hosts {
				for len(h.down) > 0 {
					w.deliverDown(h)
				}
			}
			w.check()
		}
		w.now = w.now.Add(time.Second)
	}
	for dip, h := range w.hosts {
		if usable, _ := h.stock.Usable(); w.wanted[dip] && len(usable) == 0 {
			w.t.Fatalf("seed %d: %s has no ranges though everything works", w.seed, dip)
		}
	}
}

func (w *world) settleCommit() {
	b, tally := w.desk.Batch(w.now, 1000)
	if b == nil {
		return
	}
	raw := b.Pack(nil)
	w.revision++
	w.history = append(w.history, raw)
	w.log[b.Number] = raw
	w.fold(w.book, raw)
	w.desk.Committed(tally, w.revision, w.now)
}
