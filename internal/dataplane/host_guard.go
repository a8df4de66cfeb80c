package dataplane

import (
	"fmt"
	"net/netip"

	"github.com/shuntlb/shunt/internal/lb"
)

// hostGuards are the names of guards.
var hostGuards = map[string]HostGuard{"off": GuardOff, "networks": GuardNetworks, "strict": GuardStrict}

// ParseHostGuard reads a guard's name.
func ParseHostGuard(name string) (HostGuard, error) {
	g, ok := hostGuards[name]
	if !ok {
		return 0, fmt.Errorf("%q: must be networks, strict or off", name)
	}
	return g, nil
}

// HostSender is an address that servers behind a device may send from.
type HostSender struct {
	Ifindex int
	Address netip.Addr
	// Owned: Address is a VIP of which the servers own an endpoint (rewrite none), and only what belongs to that may be sent. Else they
	// may send anything.
	Owned    bool
	Protocol lb.Protocol
	Port     uint16 // 0: all ports of ranges, all of a protocol, or any protocol
}

// guard takes in what servers are held against.
func (t *hostTables) guard(s HostState) error {
	switch s.Guard {
	case GuardOff:
		return nil
	case GuardNetworks:
		t.config.Flags |= uint32(hostHostFlagHOST_GUARD)
	case GuardStrict:
		t.config.Flags |= uint32(hostHostFlagHOST_GUARD | hostHostFlagHOST_STRICT)
	default:
		return fmt.Errorf("guard: %d: must be off, networks or strict", s.Guard)
	}
	for _, of := range []struct {
		kind     hostNetworkKind
		prefixes []netip.Prefix
	}{
		{hostNetworkKindNETWORK_UNDERLAY, s.Underlay}, {hostNetworkKindNETWORK_SOURCE, s.TunnelSources}, {hostNetworkKindNETWORK_VIP, s.VIPs},
	} {
		for _, p := range of.prefixes {
			p = p.Masked()
			key := hostNetworkPrefix{Bits: uint32(p.Bits()), Addr: p.Addr().As16()}
			if p.Addr().Is4() {
				key.Bits += 96
			}
			t.networks[key] = of.kind
		}
	}
	if n := len(t.networks); n > hostMaxNetworks {
		return fmt.Errorf("%d prefixes of Networks: at most %d fit", n, hostMaxNetworks)
	}
	return nil
}

// wantedSenders turns senders into what the map holds.
func wantedSenders(all []HostSender) (map[hostSenderKey]hostSenderUse, error) {
	out := make(map[hostSenderKey]hostSenderUse, len(all))
	for _, s := range all {
		key := hostSenderKey{Addr: s.Address.As16(), Ifindex: uint32(s.Ifindex)}
		if !s.Owned {
			out[key] |= hostSenderUseSENDER_ALL
			continue
		}
		out[key] |= hostSenderUseSENDER_ENDPOINTS
		key.Protocol, key.PortBe = uint8(s.Protocol), be16(s.Port)
		out[key] = hostSenderUseSENDER_ENDPOINTS
	}
	if n := len(out); n > hostMaxSenders {
		return nil, fmt.Errorf("%d addresses and endpoints of servers behind devices: at most %d fit", n, hostMaxSenders)
	}
	return out, nil
}
