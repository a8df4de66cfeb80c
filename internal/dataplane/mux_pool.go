package dataplane

import "math/bits"

// pool hands out indices below a limit, lowest first while none came back.
type pool struct {
	used []bool
	n    uint32   // of them true
	back []uint32 // given back, last in first out
	next uint32   // indices from here on may be free
}

func newPool(n uint32) *pool { return &pool{used: make([]bool, n)} }

// alloc returns a free index.
func (p *pool) alloc() (uint32, bool) {
	for n := len(p.back); n > 0; n = len(p.back) {
		i := p.back[n-1]
		p.back = p.back[:n-1]
		if !p.used[i] {
			p.used[i] = true
			p.n++
			return i, true
		}
	}
	for ; int(p.next) < len(p.used); p.next++ {
		if i := p.next; !p.used[i] {
			p.used[i] = true
			p.n++
			return i, true
		}
	}
	return 0, false
}

// reserve takes an index; false when it is in use or beyond the limit.
func (p *pool) reserve(i uint32) bool {
	if int(i) >= len(p.used) || p.used[i] {
		return false
	}
	p.used[i] = true
	p.n++
	return true
}

// free gives an index back.
func (p *pool) free(i uint32) {
	if !p.used[i] {
		panic("index freed twice")
	}
	p.used[i] = false
	p.n--
	p.back = append(p.back, i)
}

// log2 is the binary logarithm, rounded down; v is not 0.
func log2(v uint32) uint8 { return uint8(bits.Len32(v) - 1) }
