package snat

import (
	"math/bits"
)

// Flow identifies a connection by its protocol and remote endpoint. ICMP echo has no remote port:
// 0.
type Flow struct {
	Protocol uint8
	Port     uint16 // of the remote endpoint
	Addr     uint32 // of the remote endpoint, as a number
}

// Pool assigns ports of a DIP's ranges to connections. A port serves one connection for each remote
// endpoint (Ananta section 3.5.1). It models the data plane of a host. It is not safe for
// concurrent use.
type Pool struct {
	ports []uint16 // available for new connections
	// used holds the connections, by protocol, in open addressing.
	used  [3]set
	spin  uint64
	inUse [Ranges]uint32
	low   bool
}

// lowProbes is the number of ports in use after which a pool reports that it is low. With half of
// the ports in use towards a remote endpoint that happens for one in eight connections.
const lowProbes = 3

// NewPool returns a pool without ports. It has room for the given number of connections before it
// allocates memory.
func NewPool(seed uint64, connections int) *Pool {
	p := &Pool{spin: seed | 1}
	for i := range p.used {
		p.used[i].grow(max(16, 2*connections))
	}
	return p
}

// Use sets the ranges that new connections may take ports from. Connections with ports of other
// ranges keep them.
func (p *Pool) Use(ranges []Range) {
	p.ports = p.ports[:0]
	for _, r := range ranges {
		for i := range uint16(RangePorts) {
			p.ports = append(p.ports, r.Port()+i)
		}
	}
	p.low = false
}

// Take assigns a port to a connection; false: none is free towards its remote endpoint.
func (p *Pool) Take(f Flow) (port uint16, ok bool) {
	n := uint64(len(p.ports))
	if n == 0 {
		p.low = true
		return 0, false
	}
	u := p.of(f.Protocol)
	// xorshift64 (Marsaglia 2003). The first port tried must differ between connections, but need
	// not be unpredictable.
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

// Low reports whether ports became scarce since the last call.
func (p *Pool) Low() bool {
	low := p.low
	p.low = false
	return low
}

// InUse returns the number of connections with ports of a range.
func (p *Pool) InUse(r Range) int { return int(p.inUse[r]) }

// of returns the set of a protocol. Each protocol has its own ports.
func (p *Pool) of(protocol uint8) *set {
	switch protocol {
	case 6:
		return &p.used[0]
	case 17:
		return &p.used[1]
	}
	return &p.used[2]
}

// key packs a connection and its port into exactly 64 bits.
func (f Flow) key(port uint16) uint64 {
	return uint64(f.Addr)<<32 | uint64(f.Port)<<16 | uint64(port)
}

// set is a set of numbers other than 0. No connection has key 0, because ports below 1024 are not
// leased.
type set struct {
	slots []uint64
	shift uint
	n     int
}

func (s *set) home(key uint64) int { return int(key * 0x9e3779b97f4a7c15 >> s.shift) }

// add reports whether the key is new.
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

// remove removes a key and moves back those that it displaced.
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

// grow makes room for size slots, rounded up to a power of two.
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
