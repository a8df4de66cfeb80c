package dataplane

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/shuntlb/shunt/internal/snat"
)

// Low implements HostSNAT. The first call begins to listen.
func (h *Host) Low() <-chan snat.Holder {
	if h.snat.begin() {
		h.snat.hearAgain()
	}
	return h.snat.low
}

// begin begins to listen; false: somebody does already, or nobody can.
func (s *snatTables) begin() bool {
	s.reading.Lock()
	defer s.reading.Unlock()
	select {
	case <-s.closed:
		return false
	default:
	}
	if s.reader != nil {
		return false
	}
	r, err := ringbuf.NewReader(s.lows)
	if err != nil {
		return false
	}
	s.reader = r
	go s.listen(r)
	return true
}

// hearAgain makes all DIPs ones that may be told of again: a program of the agent before, which ran until its successor took its place, may have
// told that agent's ring.
func (s *snatTables) hearAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders == nil {
		return
	}
	for _, p := range s.placed {
		atomic.StoreUint32(&s.holders[p.index].Low, 0)
	}
}

// snatLowPause is how long a DIP is not told of again: one that asks without end takes no more of the agent than that.
const snatLowPause = 5 * time.Millisecond

// listen hands on which DIPs' ports get scarce until the reader is closed. Programs say it again only a while after it was heard.
func (s *snatTables) listen(r *ringbuf.Reader) {
	for {
		record, err := r.Read()
		if errors.Is(err, ringbuf.ErrClosed) || errors.Is(err, io.EOF) {
			return
		}
		if err != nil || len(record.RawSample) < 4 {
			continue
		}
		index := binary.LittleEndian.Uint32(record.RawSample)
		name, ok := s.holderAt(index)
		time.AfterFunc(snatLowPause, func() { s.heard(index) })
		if !ok {
			continue
		}
		select {
		case s.low <- name:
		case <-s.closed:
			return
		}
	}
}

// heard makes a DIP one that may be told of again.
func (s *snatTables) heard(index uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(index) < len(s.holders) {
		atomic.StoreUint32(&s.holders[index].Low, 0)
	}
}

// holderAt is the DIP of an index.
func (s *snatTables) holderAt(index uint32) (snat.Holder, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, p := range s.placed {
		if p.index == index {
			return name, true
		}
	}
	return snat.Holder{}, false
}

// SetDevice implements HostSNAT.
func (h *Host) SetDevice(index int) {
	s := h.snat
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders != nil {
		atomic.StoreUint32(&s.setup.Device, uint32(index))
	}
}

// Dealt implements HostSNAT.
func (h *Host) Dealt(dip netip.Addr, n int) {
	s := h.snat
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders == nil || !dip.Is4() {
		return
	}
	if of, ok := s.byAddr[dip.As4()]; ok && int(of) < len(s.holders) {
		r := &s.holders[of]
		store(&r.Dealt, min(load(&r.Handed), load(&r.Dealt)+uint64(n)))
	}
}

// Settle implements HostSNAT.
func (h *Host) Settle(waiting func(netip.Addr) (int, bool)) {
	s := h.snat
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders == nil {
		return
	}
	for name, p := range s.placed {
		if n, ok := waiting(name.DIP); ok {
			r := &s.holders[p.index]
			handed := load(&r.Handed)
			store(&r.Dealt, handed-min(handed, uint64(n)))
		}
	}
}

// counts are the ports that there are, that are in use, and the packets that wait.
func (s *snatTables) counts() HostSNATCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := HostSNATCounts{Used: s.ports, Servers: uint64(len(s.placed)), Short: uint64(len(s.short))}
	if s.holders == nil {
		return out
	}
	for _, p := range s.placed {
		out.Ports += uint64(len(p.usable)) * snat.RangePorts
		r := &s.holders[p.index]
		out.Waiting += load(&r.Handed) - load(&r.Dealt)
	}
	return out
}
