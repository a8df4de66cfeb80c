package dataplane

import (
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
		case m.Port == 0:
			return fmt.Errorf("path nat: member %d: has no port", m.ID)
		case twice:
			return fmt.Errorf("path nat: members %d and %d: address %s port %d: must not be shared", other, m.ID, m.Outer, m.Port)
		}
		seen[at] = m.ID
	}
	return nil
}

// errNoNAT: sessions of path nat are not built.
var errNoNAT = errors.New("path nat: not supported by this version")

// SetNATAddresses implements MuxTables.
func (m *Mux) SetNATAddresses(addresses []NATAddress) error {
	if err := checkNATAddresses(addresses); err != nil {
		return err
	}
	if len(addresses) > 0 {
		return errNoNAT
	}
	return nil
}

// NATUse implements MuxTables.
func (m *Mux) NATUse() (used, capacity uint64) { return 0, 0 }
