package snat

import (
	"math/bits"
)

// Flow is a connection as its far end and the protocol name it. ICMP echo has no far port: 0.
type Flow struct {
	Protocol uint8
	Port     uint16 // of the far end
	Addr     uint32 // of the far end, as a number
}

// Pool gives ports of a DIP's ranges to connections. A port serves as many connections as have different far ends (Ananta section
// 3.5.1). It is what a host's data plane does, as a model of it; it is not safe for concurrent use.
type Pool struct {
	ports []uint16 // that new connections may take
	// used are the connections there are, by protocol, in open addressing.
	used  [3]set
	spin  uint64
	inUse [Ranges]uint32
	low   bool
}

// lowProbes is after how many ports in use a pool calls itself low: with half of the ports in use towards a far end that happens once
// in eight connections.
const lowProbes = 3

// NewPool makes a pool without ports, with room for so many connections before it takes memory.
func NewPool(seed uint64, connections int) *Pool {
	p := &Pool{spin: seed | 1}
	for i := range p.used {
		p.used[i].grow(max(16, 2*connections))
	}
	return p
}

// Use makes these the ranges that new connections may take ports of. Those that have ports of others keep them.
func (p *Pool) Use(ranges []Range) {
	p.ports = p.ports[:0]
	for _, r := range ranges {
		for i := range uint16(RangePorts) {
			p.ports = append(p.ports, r.Port()+i)
		}
	}
	p.low = false
}

// Take gives a connection a port; false: none is free towards its far end.
func (p *Pool) Take(f Flow) (port uint16, ok bool) {
	n := uint64(len(p.ports))
	if n == 0 {
		p.low = true
		return 0, false
	}
	u := p.of(f.Protocol)
	// xorshift64 (Marsaglia 2003): where to begin must differ from connection to connection, and nobody gains by knowing it.
	p.spin ^= p.spin << 13
	p.spin ^= p.spin >> 7
	p.spin ^= p.spin << 17
	at, _ := bits.Mul64(p.spin, n)
	for tried := range n {
		port := p.ports[at]
		if u.add(f.key(port)) {
			p.low = p.low || tried >= lowProbes
			p.inUse[RangeOf(port)]++
			return port, true
		}
		if at++; at == n {
			at = 0
		}
	}
	p.low = true
	return 0, false
}

// Give ends a connection.
func (p *Pool) Give(f Flow, port uint16) {
	if p.of(f.Protocol).remove(f.key(port)) {
		p.inUse[RangeOf(port)]--
	}
}

// Low tells whether ports got scarce since it was asked last.
func (p *Pool) Low() bool {
	low := p.low
	p.low = false
	return low
}

// InUse is how many connections have ports of a range.
func (p *Pool) InUse(r Range) int { return int(p.inUse[r]) }

// of is the set of a protocol: each has its own ports.
func (p *Pool) of(protocol uint8) *set {
	switch protocol {
	case 6:
		return &p.used[0]
	case 17:
		return &p.used[1]
	}
	return &p.used[2]
}

// key is all of a connection with a port: exactly 64 bits.
func (f Flow) key(port uint16) uint64 {
	return uint64(f.Addr)<<32 | uint64(f.Port)<<16 | uint64(port)
}

// set is a set of numbers but 0, which is no connection's key: no port below 1024 is leased.
type set struct {
	slots []uint64
	shift uint
	n     int
}

func (s *set) home(key uint64) int { return int(key * 0x9e3779b97f4a7c15 >> s.shift) }

// add tells whether the key is new.
func (s *set) add(key uint64) bool {
	if 2*s.n >= len(s.slots) {
		s.grow(2 * len(s.slots))
	}
	mask := len(s.slots) - 1
	for i := s.home(key); ; i = (i + 1) & mask {
		switch s.slots[i] {
		case key:
			return false
		case 0:
			s.slots[i] = key
			s.n++
			return true
		}
	}
}

// remove takes a key out and moves those back that it kept from their place.
func (s *set) remove(key uint64) bool {
	mask := len(s.slots) - 1
	i := s.home(key)
	for ; s.slots[i] != key; i = (i + 1) & mask {
		if s.slots[i] == 0 {
			return false
		}
	}
	s.n--
	for j := (i + 1) & mask; s.slots[j] != 0; j = (j + 1) & mask {
		if home := s.home(s.slots[j]); (j-home)&mask >= (j-i)&mask {
			s.slots[i] = s.slots[j]
			i = j
		}
	}
	s.slots[i] = 0
	return true
}

// grow makes room for size slots, up to a power of two.
func (s *set) grow(size int) {
	old := s.slots
	bitsOf := bits.Len(uint(size - 1))
	s.slots, s.shift, s.n = make([]uint64, 1<<bitsOf), uint(64-bitsOf), 0
	for _, key := range old {
		if key != 0 {
			s.add(key)
		}
	}
}
