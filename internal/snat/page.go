package snat

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Page is the stored state of one VIP's leases.
type Page struct {
	VIP VIP
	// Through is the number of the last batch in it, Saved that of the last one in the page's
	// stored copy.
	Through, Saved uint64
	owners         [Ranges]Owner
	dips           []netip.Addr // by Owner-1; the zero address means none
	held           []int        // number of ranges of each
	byDIP          map[netip.Addr]Owner
	leased         int
	// freed holds the times when ranges were freed, Unix seconds rounded up; nil: none was. latest
	// is the time of the last batch.
	freed  *[Ranges]uint32
	latest time.Time
}

// Rested is a freed range and its time.
type Rested struct {
	Range Range
	At    time.Time
}

func newPage(v VIP) *Page { return &Page{VIP: v, byDIP: map[netip.Addr]Owner{}} }

// PageOf returns a page with these leases, without a batch.
func PageOf(v VIP, leases []Lease) (*Page, error) {
	p := newPage(v)
	for _, l := range leases {
		if err := p.lease(l); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Clone returns an independent copy.
func (p *Page) Clone() *Page {
	c := *p
	c.dips, c.held, c.byDIP = slices.Clone(p.dips), slices.Clone(p.held), maps.Clone(p.byDIP)
	if p.freed != nil {
		freed := *p.freed
		c.freed = &freed
	}
	return &c
}

// Leased returns the number of leased ranges.
func (p *Page) Leased() int { return p.leased }

// DIP returns the DIP that has a range; false: none.
func (p *Page) DIP(r Range) (netip.Addr, bool) {
	if o := p.owners[r]; o != 0 {
		return p.dips[o-1], true
	}
	return netip.Addr{}, false
}

// Rests returns the ranges that were freed within RestKept and not leased since, oldest first.
func (p *Page) Rests() (out []Rested) {
	if p.freed == nil {
		return nil
	}
	oldest := uint32(max(0, p.latest.Add(-RestKept).Unix()))
	for r, at := range p.freed {
		if at > oldest && p.owners[r] == 0 {
			out = append(out, Rested{Range(r), time.Unix(int64(at), 0)})
		}
	}
	slices.SortStableFunc(out, func(a, b Rested) int { return a.At.Compare(b.At) })
	return out
}

// rest records when a range was freed.
func (p *Page) rest(r Range, at time.Time) {
	if p.freed == nil {
		p.freed = &[Ranges]uint32{}
	}
	p.freed[r] = uint32(at.Add(time.Second - 1).Unix())
	if at.After(p.latest) {
		p.latest = at
	}
}

// Words sets, for each range, the index of its DIP plus 1; 0 is for ranges without owner and of
// DIPs without index.
func (p *Page) Words(words *[Ranges]uint16, index map[netip.Addr]uint16) {
	of := make([]uint16, len(p.dips)+1)
	for i, dip := range p.dips {
		if n, ok := index[dip]; ok {
			of[i+1] = n + 1
		}
	}
	for r, o := range p.owners {
		words[r] = of[o]
	}
}

// EachLease calls each with every lease, ordered by range.
func (p *Page) EachLease(each func(Lease)) {
	for r, o := range p.owners {
		if o != 0 {
			each(Lease{DIP: p.dips[o-1], Range: Range(r)})
		}
	}
}

func (p *Page) lease(l Lease) error {
	if o := p.owners[l.Range]; o != 0 {
		return fmt.Errorf("range %s of %s is leased to %s, and was to %s", l.Range, p.VIP.Addr, l.DIP, p.dips[o-1])
	}
	o := p.byDIP[l.DIP]
	if o == 0 {
		i := slices.Index(p.dips, netip.Addr{})
		if i < 0 {
			i = len(p.dips)
			p.dips, p.held = append(p.dips, netip.Addr{}), append(p.held, 0)
		}
		p.dips[i] = l.DIP
		o = Owner(i + 1)
		p.byDIP[l.DIP] = o
	}
	p.owners[l.Range] = o
	p.held[o-1]++
	p.leased++
	return nil
}

func (p *Page) free(r Range, at time.Time) error {
	o := p.owners[r]
	if o == 0 {
		return fmt.Errorf("range %s of %s is freed, and nobody had it", r, p.VIP.Addr)
	}
	p.owners[r] = 0
	p.leased--
	if p.held[o-1]--; p.held[o-1] == 0 {
		delete(p.byDIP, p.dips[o-1])
		p.dips[o-1] = netip.Addr{}
	}
	p.rest(r, at)
	return nil
}

// Pack appends the page: version u8, VNI u32, VIP 4 bytes, number of the last batch u64, DIPs u32,
// leases u32, rests u32; each DIP 4 bytes; each lease range u16, index of its DIP u16; each rest
// range u16, time in Unix seconds u32. Big endian.
func (p *Page) Pack(out []byte) []byte {
	e, rests := binary.BigEndian, p.Rests()
	out = packVIP(append(out, format), p.VIP)
	out = e.AppendUint64(out, p.Through)
	var dips []netip.Addr
	index := make([]uint16, len(p.dips))
	for i, dip := range p.dips {
		if dip.IsValid() {
			index[i] = uint16(len(dips))
			dips = append(dips, dip)
		}
	}
	out = e.AppendUint32(out, uint32(len(dips)))
	out = e.AppendUint32(out, uint32(p.leased))
	out = e.AppendUint32(out, uint32(len(rests)))
	for _, dip := range dips {
		a := dip.As4()
		out = append(out, a[:]...)
	}
	for r, o := range p.owners {
		if o != 0 {
			out = e.AppendUint16(e.AppendUint16(out, uint16(r)), index[o-1])
		}
	}
	for _, q := range rests {
		out = e.AppendUint32(e.AppendUint16(out, uint16(q.Range)), uint32(q.At.Unix()))
	}
	return out
}

// PeekPage returns the VIP and the last batch of a packed page.
func PeekPage(in []byte) (v VIP, through uint64, err error) {
	c := cursor{in: in}
	if err := c.version(); err != nil {
		return v, 0, err
	}
	if v, through = c.vip(), c.u64(); c.short {
		return v, 0, errShort
	}
	return v, through, nil
}

// UnpackPage parses the output of Pack.
func UnpackPage(in []byte) (*Page, error) {
	c := cursor{in: in}
	if err := c.version(); err != nil {
		return nil, err
	}
	p := newPage(c.vip())
	p.Through = c.u64()
	p.Saved = p.Through
	ndips, leases, rests := int(c.u32()), int(c.u32()), int(c.u32())
	if c.short || ndips*4+leases*4+rests*6 != len(c.in) {
		return nil, errShort
	}
	dips := make([]netip.Addr, ndips)
	for i := range dips {
		dips[i] = c.addr()
	}
	for range leases {
		r, i := c.rng(), int(c.u16())
		if i >= ndips {
			return nil, fmt.Errorf("packed leases: DIP %d: must be less than %d", i, ndips)
		}
		if err := p.lease(Lease{DIP: dips[i], Range: r}); err != nil {
			return nil, err
		}
	}
	for range rests {
		r := c.rng()
		p.rest(r, time.Unix(int64(c.u32()), 0))
	}
	return p, c.end()
}
