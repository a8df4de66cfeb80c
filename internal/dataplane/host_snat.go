package dataplane

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
	"github.com/shuntlb/shunt/internal/snat"
)

// hostMapSNATLows is the map that lives no longer than an agent.
const hostMapSNATLows = "snat_lows"

// hostMapSNATSpent is the map of far ends without free ports, which are those of a tick.
const hostMapSNATSpent = "snat_spent"

// Limits of bpf/abi/host_snat.h.
const (
	hostMaxHolders = int(hostHostSnatLimitLIMIT_HOST_SNAT_HOLDERS)
	hostMaxInside  = int(hostHostSnatLimitLIMIT_HOST_SNAT_INSIDE)
	// MaxSNATServers is how many servers may have ports of VIPs.
	MaxSNATServers = hostMaxHolders
	// MaxSNATWaiting is how many packets of a DIP the agent is given at once.
	MaxSNATWaiting = int(hostHostSnatLimitLIMIT_HOST_SNAT_WAITING)
	// snatBinding is what flows with leased ports have in the place of a binding.
	snatBinding = uint32(hostHostSnatLimitHOST_SNAT_BINDING)
)

// snatEchoIdle is how long an ICMP echo's identifier is kept (RFC 5508 section 3.2).
const snatEchoIdle = time.Minute

// snatTables is what the programs know of servers whose connections leave with a VIP (bpf/abi/host_snat.h), in this process's memory. A
// DIP's ranges are a block that is not changed while programs may read it: a change fills another one and names it, and the old one is free
// after a grace period. So is the index of a DIP that is gone.
type snatTables struct {
	memory  muxMemory
	addrs   *ebpf.Map
	lows    *ebpf.Map
	holders []hostHostSnatHolder
	ranges  []hostHostSnatRange
	setup   *hostHostSnatSetup
	grace   *grace
	tick    func() uint32

	// reading is held while the reader of lows is made or closed. Nothing is taken under it.
	reading sync.Mutex
	reader  *ringbuf.Reader
	closed  chan struct{}
	low     chan snat.Holder

	// mu guards what follows; taken last.
	mu       sync.Mutex
	placed   map[snat.Holder]*snatHolder
	byNumber map[[2]uint32]*snatHolder // by the numbers of the addresses of DIP and VIP
	byAddr   map[[4]byte]uint32        // as the map snat_addrs
	taken    []bool                    // holders
	space    *buddy
	left     []snatLeft
	// told: SetHolders was called. Until then flows of DIPs that are not known are left alone.
	told bool
	// swept: a whole sweep was made. It found so many flows with leased ports, and so many ports that they have.
	swept        bool
	flows, ports uint64
	// short are DIPs whose last ranges did not all find room.
	short map[snat.Holder]bool
}

// snatHolder is a DIP's place in the tables.
type snatHolder struct {
	index  uint32
	number [2]uint32 // of the addresses of DIP and VIP
	block  block
	usable []snat.Range
	// held are usable and leaving ranges, once SetRanges said so: until then flows of others are left alone.
	held *snat.Bitmap
	// seen is the tick at which a flow was last found to use a range.
	seen map[snat.Range]uint32
}

// snatLeft is what programs may still read.
type snatLeft struct {
	of    *snatHolder
	block block
	count int
	gone  bool // the holder's index too
}

var _ HostSNAT = (*Host)(nil)

// openSNAT maps the tables and learns what they hold.
func openSNAT(o *hostObjects, addrs *addrTable, g *grace, tick func() uint32) (*snatTables, error) {
	s := &snatTables{
		addrs: o.SnatAddrs, lows: o.SnatLows, grace: g, tick: tick, closed: make(chan struct{}), low: make(chan snat.Holder, 64),
		placed: map[snat.Holder]*snatHolder{}, byNumber: map[[2]uint32]*snatHolder{}, byAddr: map[[4]byte]uint32{}, short: map[snat.Holder]bool{},
	}
	var setups []hostHostSnatSetup
	err := errors.Join(mapTable(&s.memory, o.SnatHolders, &s.holders), mapTable(&s.memory, o.SnatRanges, &s.ranges), mapTable(&s.memory, o.SnatSetups, &setups))
	if err == nil {
		s.setup = &setups[0]
		s.taken = make([]bool, len(s.holders))
		s.space = newBuddy(uint32(len(s.ranges)), 8)
		err = s.adopt(addrs)
	}
	if err != nil {
		s.memory.close()
		return nil, err
	}
	return s, nil
}

// adopt takes over what the pins have. The device of the agent before is gone, and what it had of packets.
func (s *snatTables) adopt(addrs *addrTable) error {
	atomic.StoreUint32(&s.setup.Device, 0)
	all, err := readAll[[4]byte, hostHostSnatAddr](s.addrs)
	if err != nil {
		return err
	}
	for addr, of := range all {
		s.byAddr[addr] = uint32(of)
		if of == hostHostSnatAddrSNAT_VIP || int(of) >= len(s.holders) {
			continue
		}
		r := &s.holders[of]
		h := snat.Holder{VIP: snat.VIP{Addr: netip.AddrFrom16(addrs.cells[r.Vip]).Unmap()}, DIP: netip.AddrFrom4(addr)}
		for _, a := range []netip.Addr{h.DIP, h.VIP.Addr} {
			if _, err := addrs.number(a.As16()); err != nil {
				return err
			}
		}
		p := s.putLocked(h, uint32(of))
		word := load(&r.Ranges)
		if n := uint32(word >> 32); n != 0 {
			var ok bool
			if p.block, ok = s.space.reserve(uint32(word), n); !ok {
				return fmt.Errorf("adopt ranges of %s: they are another DIP's too", h.DIP)
			}
			for _, w := range s.ranges[p.block.first : p.block.first+n] {
				p.usable = append(p.usable, snat.Range(w.Range))
			}
		}
		atomic.StoreUint32(&r.Low, 0)
		store(&r.Dealt, load(&r.Handed))
		s.taken[of] = true
	}
	return nil
}

// close wakes who reads, and lets go of the memory.
func (s *snatTables) close() {
	s.reading.Lock()
	select {
	case <-s.closed:
		s.reading.Unlock()
		return
	default:
	}
	close(s.closed)
	if s.reader != nil {
		s.reader.Close()
	}
	s.reading.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory.close()
	s.holders = nil
}

// checkHolders refuses what the tables cannot have.
func checkHolders(holders []snat.Holder) error {
	if len(holders) > hostMaxHolders {
		return fmt.Errorf("%d servers whose connections leave with a VIP: at most %d fit", len(holders), hostMaxHolders)
	}
	for _, h := range holders {
		if h.VIP.VNI != 0 {
			return fmt.Errorf("SNAT of %s: vni: %d: not supported by this version, must be 0", h.DIP, h.VIP.VNI)
		}
		if !h.VIP.Addr.Is4() || !h.DIP.Is4() {
			return fmt.Errorf("SNAT of %s with %s: both must be IPv4 addresses", h.DIP, h.VIP.Addr)
		}
	}
	return nil
}

// compareHolders orders DIPs, and the VIPs of one.
func compareHolders(a, b snat.Holder) int {
	return cmp.Or(a.DIP.Compare(b.DIP), a.VIP.Compare(b.VIP))
}

// SetHolders implements HostSNAT. Of a DIP with several VIPs the least one is sent from.
func (h *Host) SetHolders(holders []snat.Holder) error {
	if err := checkHolders(holders); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.setHoldersLocked(holders); err != nil {
		return err
	}
	if h.state.plans != nil {
		h.keepAddrsLocked(h.state)
	}
	return nil
}

func (h *Host) setHoldersLocked(holders []snat.Holder) error {
	s := h.snat
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders == nil {
		return errors.New("set DIPs with SNAT: the tables are closed")
	}
	s.told = true
	want := make(map[snat.Holder]bool, len(holders))
	byAddr := map[[4]byte]uint32{}
	for _, name := range slices.SortedFunc(slices.Values(holders), compareHolders) {
		want[name] = true
		p := s.placed[name]
		if p == nil {
			var err error
			if p, err = h.placeHolderLocked(name); err != nil {
				return err
			}
		}
		if _, later := byAddr[name.DIP.As4()]; !later {
			byAddr[name.DIP.As4()] = p.index
		}
	}
	for name := range want {
		if _, dip := byAddr[name.VIP.Addr.As4()]; !dip {
			byAddr[name.VIP.Addr.As4()] = uint32(hostHostSnatAddrSNAT_VIP)
		}
	}
	if err := errors.Join(putAll(s.addrs, s.byAddr, byAddr), prune(s.addrs, s.byAddr, byAddr)); err != nil {
		return err
	}
	for name, p := range s.placed {
		if !want[name] {
			store(&s.holders[p.index].Ranges, 0)
			s.left = append(s.left, snatLeft{of: p, block: p.block, count: len(p.usable), gone: true})
			delete(s.placed, name)
			delete(s.short, name)
			delete(s.byNumber, p.number)
		}
	}
	atomic.StoreUint32(&s.setup.Holders, uint32(len(s.placed)))
	return nil
}

// placeHolderLocked gives a DIP a place, without ranges. Host.mu and that of the tables are held.
func (h *Host) placeHolderLocked(name snat.Holder) (*snatHolder, error) {
	s := h.snat
	index := slices.Index(s.taken, false)
	if index < 0 {
		if err := s.releaseLocked(); err != nil {
			return nil, err
		}
		if index = slices.Index(s.taken, false); index < 0 {
			return nil, fmt.Errorf("no room for SNAT of %s: %d servers have it", name.DIP, len(s.placed))
		}
	}
	var r hostHostSnatHolder
	var err error
	if r.Dip, err = h.flows.addrs.number(name.DIP.As16()); err != nil {
		return nil, err
	}
	if r.Vip, err = h.flows.addrs.number(name.VIP.Addr.As16()); err != nil {
		return nil, err
	}
	r.Mss = h.snatMSSLocked(name.DIP)
	s.holders[index] = r
	s.taken[index] = true
	return s.putLocked(name, uint32(index)), nil
}

// putLocked makes a written record that of a DIP.
func (s *snatTables) putLocked(name snat.Holder, index uint32) *snatHolder {
	r := &s.holders[index]
	p := &snatHolder{index: index, number: [2]uint32{r.Dip, r.Vip}, seen: map[snat.Range]uint32{}}
	s.placed[name], s.byNumber[p.number] = p, p
	return p
}

// snatMSSLocked is what a segment for the DIP may carry: what comes back travels in the widest tunnel that the VIP's Network may say.
func (h *Host) snatMSSLocked(dip netip.Addr) uint16 {
	b := plan.Binding{Key: lb.EndpointKey{VIP: dip}, Outer: netip.IPv6Unspecified(), Encap: lb.EncapGUE}
	for i := range h.state.plans {
		if h.state.plans[i].DIP == dip {
			b.Outer = h.state.plans[i].Outer
			break
		}
	}
	return clampMSS(h.mtu, b)
}

// clampHoldersLocked follows a change of the MTU or of the DIPs' tunnels.
func (h *Host) clampHoldersLocked() {
	h.snat.mu.Lock()
	defer h.snat.mu.Unlock()
	for name, p := range h.snat.placed {
		if mss := h.snatMSSLocked(name.DIP); h.snat.holders[p.index].Mss != mss {
			h.snat.holders[p.index].Mss = mss
		}
	}
}

// numbers adds those of the addresses that DIPs with SNAT have.
func (s *snatTables) numbers(wanted map[uint32]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number := range s.byNumber {
		wanted[number[0]], wanted[number[1]] = true, true
	}
}
