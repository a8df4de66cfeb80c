package dataplane

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shuntlb/shunt/internal/snat"
)

// SetRanges implements HostSNAT.
func (h *Host) SetRanges(name snat.Holder, usable, leaving []snat.Range) error {
	s := h.snat
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.placed[name]
	switch {
	case s.holders == nil:
		return errors.New("set ranges: the tables are closed")
	case p == nil && len(usable)+len(leaving) == 0:
		return nil
	case p == nil:
		return fmt.Errorf("give ports of %s to %s: its connections do not leave with that VIP", name.VIP.Addr, name.DIP)
	}
	p.held = &snat.Bitmap{}
	for _, r := range usable {
		p.held.Set(r)
	}
	for _, r := range leaving {
		p.held.Set(r)
	}
	if slices.Equal(p.usable, usable) {
		return nil
	}
	return s.writeLocked(name, p, usable)
}

// modestRanges is how many ranges a DIP may use where a quarter of the table or less is free.
const modestRanges = 512

// allocLocked finds room for ranges. The last quarter of the table is for DIPs that have few, so that no tenant's servers keep all others from getting
// ports on this host.
func (s *snatTables) allocLocked(n int) (block, bool) {
	if whole := uint64(len(s.ranges)); n > modestRanges && uint64(s.space.used)+blockUnits(uint64(n), 8) > whole-whole/4 {
		return block{}, false
	}
	return s.space.alloc(uint32(n))
}

// writeLocked names a new block of ranges, of the first ones if not all find room.
func (s *snatTables) writeLocked(name snat.Holder, p *snatHolder, usable []snat.Range) error {
	var fresh block
	word, wanted := uint64(0), len(usable)
	if len(usable) > 0 {
		var ok bool
		if fresh, ok = s.allocLocked(len(usable)); !ok {
			if err := s.releaseLocked(); err != nil {
				return err
			}
			for fresh, ok = s.allocLocked(len(usable)); !ok; fresh, ok = s.allocLocked(len(usable)) {
				if usable = usable[:len(usable)/2]; len(usable) == 0 {
					return fmt.Errorf("no room for %d ranges: %d are there", wanted, s.space.used)
				}
			}
		}
		word = uint64(len(usable))<<32 | uint64(fresh.first)
	}
	if delete(s.short, name); len(usable) < wanted {
		s.short[name] = true
	}
	s.noteLocked(p, p.block, len(p.usable))
	for i, r := range usable {
		s.ranges[fresh.first+uint32(i)] = hostHostSnatRange{Range: uint32(r)}
	}
	store(&s.holders[p.index].Ranges, word)
	store(&s.holders[p.index].Changes, load(&s.holders[p.index].Changes)+1)
	if p.block.words > 0 {
		s.left = append(s.left, snatLeft{of: p, block: p.block, count: len(p.usable)})
	}
	p.block, p.usable = fresh, slices.Clone(usable)
	return nil
}

// noteLocked keeps what a block says of the use of its ranges.
func (s *snatTables) noteLocked(p *snatHolder, b block, count int) {
	words := s.ranges[b.first : b.first+uint32(count)]
	for i := range words {
		w := &words[i]
		if used := atomic.LoadUint32(&w.Used); used != 0 {
			p.sawLocked(snat.Range(w.Range), used)
		}
	}
}

// sawLocked notes that a range was in use at a tick.
func (p *snatHolder) sawLocked(r snat.Range, tick uint32) {
	if have, ok := p.seen[r]; !ok || int32(tick-have) > 0 {
		p.seen[r] = tick
	}
}

// release frees what programs do not read any more. It waits for a grace period when there is something.
func (s *snatTables) release() error {
	s.mu.Lock()
	left := s.left
	s.left = nil
	s.mu.Unlock()
	if len(left) == 0 {
		return nil
	}
	if err := s.grace.wait(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freeLocked(left)
	return nil
}

func (s *snatTables) releaseLocked() error {
	left := s.left
	s.left = nil
	if len(left) == 0 {
		return nil
	}
	if err := s.grace.wait(); err != nil {
		return err
	}
	s.freeLocked(left)
	return nil
}

func (s *snatTables) freeLocked(left []snatLeft) {
	if s.holders == nil {
		return
	}
	for _, l := range left {
		s.noteLocked(l.of, l.block, l.count)
		s.space.free(l.block)
		if l.gone {
			s.holders[l.of.index] = hostHostSnatHolder{}
			s.taken[l.of.index] = false
		}
	}
}

// Uses implements HostSNAT: when a connection took a port of a range last, or a sweep found one that has one.
func (h *Host) Uses() ([]SNATUse, error) {
	s := h.snat
	// Packets that were under way when ranges changed have noted what they took.
	if err := s.release(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders == nil {
		return nil, errors.New("read uses of ports: the tables are closed")
	}
	now, tick := time.Now(), s.tick()
	var out []SNATUse
	for name, p := range s.placed {
		s.noteLocked(p, p.block, len(p.usable))
		for r, seen := range p.seen {
			if p.held != nil && !p.held.Has(r) {
				delete(p.seen, r)
				continue
			}
			ago := time.Duration(max(0, int64(int32(tick-seen)))) << hostFlowTagFLOW_TAG_TICK_SHIFT
			out = append(out, SNATUse{Holder: name, Range: r, At: now.Add(-ago)})
		}
	}
	return out, nil
}
