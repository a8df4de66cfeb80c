package dataplane

import (
	"math/bits"
	"sync/atomic"

	"github.com/shuntlb/shunt/internal/snat"
)

// snatSweep is what a pass through the flow table finds of flows with leased ports.
type snatSweep struct {
	// look: there may be some.
	look  bool
	flows uint64
	tick  uint32
	of    map[[2]uint32]*sweptSNAT // by the numbers of the addresses of DIP and VIP
	// last is the entry of `of` that was asked for last, under the key lastKey.
	last    *sweptSNAT
	lastKey [2]uint32
}

// sweptSNAT is what a pass finds of one DIP.
type sweptSNAT struct {
	held  *snat.Bitmap // nil: nobody said
	ports [65536 / 64]uint64
}

// beginSweep says what a pass has to look for.
func (s *snatTables) beginSweep() snatSweep {
	s.mu.Lock()
	defer s.mu.Unlock()
	return snatSweep{look: len(s.placed) > 0 || s.flows > 0 || !s.swept, of: map[[2]uint32]*sweptSNAT{}}
}

// find is the entry of a DIP and VIP.
func (w *snatSweep) find(s *snatTables, key [2]uint32) *sweptSNAT {
	if w.last != nil && w.lastKey == key {
		return w.last
	}
	e := w.of[key]
	if e == nil {
		e = &sweptSNAT{held: s.heldOf(key)}
		w.of[key] = e
	}
	w.last, w.lastKey = e, key
	return e
}

// heldOf are the ranges that a DIP has of a VIP; nil: nobody said yet.
func (s *snatTables) heldOf(key [2]uint32) *snat.Bitmap {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.byNumber[key]; p != nil {
		return p.held
	}
	if s.told {
		return &snat.Bitmap{}
	}
	return nil
}

// flow takes in a live record of a flow with a leased port, or of what leads back to one, and takes it out when its port is not leased to its
// DIP any more: false.
func (w *snatSweep) flow(s *snatTables, word *uint64, tag flowTag, r *hostFlowRecord, tick uint64) bool {
	was := *r
	back := was.Kind == uint8(hostFlowKindFLOW_BACK)
	key, port := [2]uint32{was.Dip, was.Vip}, be16(was.VipPortBe)
	if back {
		key, port = [2]uint32{was.Vip, was.Dip}, be16(was.DipPortBe)
	}
	if load(word) != uint64(tag) {
		return true // another flow has the place, or this one had a packet: the next sweep sees
	}
	e := w.find(s, key)
	if e.held != nil && !e.held.Has(snat.RangeOf(port)) {
		// It may have been leased since.
		if e.held = s.heldOf(key); e.held != nil && !e.held.Has(snat.RangeOf(port)) {
			return !atomic.CompareAndSwapUint64(word, uint64(tag), 0)
		}
	}
	if !back {
		w.flows++
		w.tick = uint32(tick)
		e.ports[port/64] |= 1 << (port % 64)
	}
	return true
}

// endSweep takes in what a whole pass found.
func (s *snatTables) endSweep(w *snatSweep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.swept, s.flows, s.ports = true, w.flows, 0
	for key, e := range w.of {
		p := s.byNumber[key]
		for i, word := range e.ports {
			s.ports += uint64(bits.OnesCount64(word))
			for ; word != 0 && p != nil; word &= word - 1 {
				p.sawLocked(snat.RangeOf(uint16(i*64+bits.TrailingZeros64(word))), w.tick)
			}
		}
	}
}
