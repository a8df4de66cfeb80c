package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// MaxNATAddresses is how many addresses of each family a mux sends from to servers of path nat.
const MaxNATAddresses = 16

// NATAddress is an address that no other mux has, and the ports of it that the mux sends from to servers of path nat.
type NATAddress struct {
	Addr      netip.Addr
	Low, High uint16 // first and last port
}

// checkNATAddresses refuses addresses that nothing can be sent from.
func checkNATAddresses(addresses []NATAddress) error {
	seen, families := map[netip.Addr]bool{}, map[bool]int{}
	for _, a := range addresses {
		switch {
		case !a.Addr.IsValid() || a.Addr.Is4In6() || a.Addr.Zone() != "" || a.Addr.IsUnspecified() || a.Addr.IsMulticast() || a.Addr.IsLoopback():
			return fmt.Errorf("NAT address %v: must be a unicast IPv4 or IPv6 address", a.Addr)
		case a.Low == 0 || a.Low > a.High:
			return fmt.Errorf("NAT address %v: ports %d-%d: must be a range from 1 to 65535", a.Addr, a.Low, a.High)
		case seen[a.Addr]:
			return fmt.Errorf("NAT address %v: given twice", a.Addr)
		}
		seen[a.Addr] = true
		if families[a.Addr.Is4()]++; families[a.Addr.Is4()] > MaxNATAddresses {
			return fmt.Errorf("NAT address %v: at most %d of each family", a.Addr, MaxNATAddresses)
		}
	}
	return nil
}

// checkNAT refuses endpoints whose packets could not be rewritten.
func checkNAT(e MuxEndpoint) error {
	split := e.Cookie != nil && e.Cookie.Form.Split()
	if !e.NAT {
		if split {
			return errors.New("cookie form split: must have path nat: its timestamps are rewritten both ways")
		}
		for _, m := range e.Members {
			if m.Port != 0 {
				return fmt.Errorf("member %d: port %d: must be left out but with path nat", m.ID, m.Port)
			}
		}
		return nil
	}
	switch {
	case e.Key.Protocol != lb.TCP && e.Key.Protocol != lb.UDP:
		return fmt.Errorf("path nat: protocol %s: must be tcp or udp", e.Key.Protocol)
	case e.Cookie != nil && !split:
		return errors.New("path nat: cookie form: must be split-r or split-z, for no host stamps packets")
	case e.Cookie != nil && !e.Cookie.Live[e.Cookie.Mint&1]:
		return fmt.Errorf("path nat: cookie keys: key %d, which cookies are made with, does not count", e.Cookie.Mint&1)
	case e.QUIC != nil:
		return errors.New("path nat: not with connection ids")
	case e.OnePacket || e.Fragments3Tuple:
		return errors.New("path nat: not with one packet, or fragments by three values")
	case e.Encap != EncapIPIP:
		return errors.New("path nat: packets are not encapsulated")
	}
	type far struct {
		addr netip.Addr
		port uint16
	}
	seen := make(map[far]uint16, len(e.Members))
	for _, m := range e.Members {
		at := far{m.Outer, m.Port}
		other, twice := seen[at]
		switch {
		case m.Outer.Is4() != e.Key.VIP.Is4():
			return fmt.Errorf("path nat: member %d: address %s: must be of the family of the VIP", m.ID, m.Outer)
		case m.Port == 0 && e.Key.PortEnd == 0:
			return fmt.Errorf("path nat: member %d: has no port", m.ID)
		case twice:
			return fmt.Errorf("path nat: members %d and %d: address %s port %d: must not be shared", other, m.ID, m.Outer, m.Port)
		}
		seen[at] = m.ID
	}
	return nil
}

// errNoNATRoom: there are no sessions of path nat.
func errNoNATRoom() error {
	return noRoom(TableNAT, "path nat: this mux has no room for sessions (--nat-sessions 0)")
}

// storedHalves are an address as two halves as stored.
func storedHalves(a netip.Addr) (hi, lo uint64) {
	b := a.As16()
	return binary.NativeEndian.Uint64(b[:8]), binary.NativeEndian.Uint64(b[8:])
}

// ofHalves is the address that storedHalves took apart.
func ofHalves(hi, lo uint64) netip.Addr {
	var b [16]byte
	binary.NativeEndian.PutUint64(b[:8], hi)
	binary.NativeEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b).Unmap()
}

// SetNATAddresses implements MuxTables.
func (m *Mux) SetNATAddresses(addresses []NATAddress) error {
	if err := checkNATAddresses(addresses); err != nil {
		return err
	}
	m.sweeping.Lock()
	defer m.sweeping.Unlock()
	m.mu.Lock()
	if len(addresses) > 0 && m.memory.natRoom == 0 {
		m.mu.Unlock()
		return errNoNATRoom()
	}
	had := m.memory.addressesOfNAT()
	m.memory.publishNAT(addresses)
	m.mu.Unlock()
	// The half that was in use is free for the next call, and no packet begins a session with what is gone.
	if err := m.grace.wait(); err != nil {
		return err
	}
	stay := map[netip.Addr]NATAddress{}
	for _, a := range addresses {
		stay[a.Addr] = a
	}
	gone := false
	for _, a := range had {
		if _, ok := stay[a.Addr]; !ok {
			gone = true
		}
	}
	if !gone {
		return nil
	}
	_, err := m.eachSession(context.Background(), func(_ muxNatKey, s *muxNatSession) bool {
		_, ok := stay[ofHalves(s.LipHi, s.LipLo)]
		return ok
	})
	return err
}

// publishNAT writes addresses into the half of the table that is not in use, and makes that the one that counts.
func (mem *muxMemory) publishNAT(addresses []NATAddress) {
	const each = int(muxNatLimitLIMIT_NAT_ADDRESSES)
	half := load(&mem.config.Nat)>>muxNatShiftNAT_HALF_SHIFT&1 ^ 1
	table := mem.natAddresses[int(half)*2*each:][:2*each]
	var count [2]int
	for _, a := range addresses {
		family := 0
		if !a.Addr.Is4() {
			family = 1
		}
		record := muxNatAddress{Low: a.Low, High: a.High}
		record.Hi, record.Lo = storedHalves(a.Addr)
		table[family*each+count[family]] = record
		count[family]++
	}
	store(&mem.config.Nat, uint64(count[0])|uint64(count[1])<<muxNatShiftNAT_COUNT6SHIFT|half<<muxNatShiftNAT_HALF_SHIFT)
}

// addressesOfNAT reads them back.
func (mem *muxMemory) addressesOfNAT() (out []NATAddress) {
	const each = int(muxNatLimitLIMIT_NAT_ADDRESSES)
	word := load(&mem.config.Nat)
	half := int(word >> muxNatShiftNAT_HALF_SHIFT & 1)
	for family, shift := range []uint{0, uint(muxNatShiftNAT_COUNT6SHIFT)} {
		first := half*2*each + family*each
		for _, r := range mem.natAddresses[first : first+int(word>>shift&0xff)] {
			out = append(out, NATAddress{ofHalves(r.Hi, r.Lo), r.Low, r.High})
		}
	}
	return out
}

// NATUse implements MuxTables.
func (m *Mux) NATUse() (used, capacity uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.natUsed, uint64(m.memory.natRoom)
}
