package snat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Lease is a range that is leased to a DIP.
type Lease struct {
	DIP   netip.Addr
	Range Range
}

// Section holds the changes of a batch for one VIP. No range is in it twice.
type Section struct {
	VIP    VIP
	Leased []Lease
	Freed  []Range
}

// Batch holds the lease changes of one transaction. Batches are numbered without gaps.
type Batch struct {
	Number   uint64
	At       time.Time // of the leader's clock, whole milliseconds
	Sections []Section
}

// Changes returns the number of ranges that change owner.
func (b *Batch) Changes() (n int) {
	for i := range b.Sections {
		n += len(b.Sections[i].Leased) + len(b.Sections[i].Freed)
	}
	return n
}

// format is the version of packed values.
const format = 1

// errShort means that packed bytes end too early, or too late.
var errShort = errors.New("packed leases: wrong length")

// Pack appends the batch: version u8, number u64, time in Unix milliseconds i64, sections u32; each
// of them VNI u32, VIP 4 bytes, leased u32, freed u32; each lease DIP 4 bytes, range u16; each
// freed range u16. Big endian.
func (b *Batch) Pack(out []byte) []byte {
	e := binary.BigEndian
	out = append(out, format)
	out = e.AppendUint64(out, b.Number)
	out = e.AppendUint64(out, uint64(b.At.UnixMilli()))
	out = e.AppendUint32(out, uint32(len(b.Sections)))
	for i := range b.Sections {
		s := &b.Sections[i]
		out = packVIP(out, s.VIP)
		out = e.AppendUint32(out, uint32(len(s.Leased)))
		out = e.AppendUint32(out, uint32(len(s.Freed)))
		for _, l := range s.Leased {
			a := l.DIP.As4()
			out = e.AppendUint16(append(out, a[:]...), uint16(l.Range))
		}
		for _, r := range s.Freed {
			out = e.AppendUint16(out, uint16(r))
		}
	}
	return out
}

func packVIP(out []byte, v VIP) []byte {
	a := v.Addr.As4()
	return append(binary.BigEndian.AppendUint32(out, v.VNI), a[:]...)
}

// Unpack parses the output of Pack.
func (b *Batch) Unpack(in []byte) error {
	c := cursor{in: in}
	if err := c.version(); err != nil {
		return err
	}
	b.Number, b.At = c.u64(), time.UnixMilli(int64(c.u64()))
	n := c.count(16)
	b.Sections = make([]Section, n)
	for i := range b.Sections {
		s := &b.Sections[i]
		s.VIP = c.vip()
		leased := int(c.u32())
		freed := int(c.u32())
		if c.short || leased*6+freed*2 > len(c.in) {
			return errShort
		}
		s.Leased, s.Freed = make([]Lease, leased), make([]Range, freed)
		for j := range s.Leased {
			s.Leased[j] = Lease{DIP: c.addr(), Range: c.rng()}
		}
		for j := range s.Freed {
			s.Freed[j] = c.rng()
		}
	}
	return c.end()
}

// cursor reads packed bytes. Bytes beyond the end read as zero, and end then returns an error.
type cursor struct {
	in    []byte
	short bool
	wrong error
}

func (c *cursor) take(n int) []byte {
	if len(c.in) < n {
		c.short, c.in = true, nil
		return make([]byte, n)
	}
	out := c.in[:n]
	c.in = c.in[n:]
	return out
}

func (c *cursor) u16() uint16      { return binary.BigEndian.Uint16(c.take(2)) }
func (c *cursor) u32() uint32      { return binary.BigEndian.Uint32(c.take(4)) }
func (c *cursor) u64() uint64      { return binary.BigEndian.Uint64(c.take(8)) }
func (c *cursor) addr() netip.Addr { return netip.AddrFrom4([4]byte(c.take(4))) }
func (c *cursor) vip() VIP         { return VIP{VNI: c.u32(), Addr: c.addr()} }

func (c *cursor) rng() Range {
	r := Range(c.u16())
	if r >= Ranges {
		c.wrong = fmt.Errorf("packed leases: range %d: must be less than %d", r, Ranges)
		return 0
	}
	return r
}

// count reads a number of elements of at least size bytes each.
func (c *cursor) count(size int) int {
	n := int(c.u32())
	if n*size > len(c.in) {
		c.short = true
		return 0
	}
	return n
}

func (c *cursor) version() error {
	if v := c.take(1)[0]; !c.short && v != format {
		return fmt.Errorf("packed leases: version %d: must be %d", v, format)
	}
	return nil
}

func (c *cursor) end() error {
	if c.short || len(c.in) > 0 {
		return errShort
	}
	return c.wrong
}
