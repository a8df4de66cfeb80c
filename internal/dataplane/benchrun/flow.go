package benchrun

import (
	"encoding/binary"
	"net/netip"

	"github.com/shuntlb/shunt/internal/cookie"
	"github.com/shuntlb/shunt/internal/dataplane"
	"github.com/shuntlb/shunt/internal/lb"
)

// Port is the destination port of every packet.
const Port = 80

// Bases of the addresses, as the front program writes them: clients in the benchmarking prefixes of RFC 2544 and
// RFC 5180, VIPs counted up from a base.
var (
	client4 = netip.MustParseAddr("198.18.0.0")
	client6 = netip.MustParseAddr("2001:2::")
	vip4    = netip.MustParseAddr("10.200.0.0")
	vip6    = netip.MustParseAddr("2001:db8:f::")
)

// Family is the IP version of the packets.
type Family uint32

// The two families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// VIP returns the address of VIP number i.
func (f Family) VIP(i uint32) netip.Addr {
	if f == IPv4 {
		return add4(vip4, i)
	}
	return low6(vip6, uint64(i)+1)
}

// vipNumber is the number of a VIP.
func (f Family) vipNumber(vip netip.Addr) uint32 {
	if f == IPv4 {
		base, b := vip4.As4(), vip.As4()
		return binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(base[:])
	}
	b := vip.As16()
	return uint32(binary.BigEndian.Uint64(b[8:]) - 1)
}

// flowIDs is struct flow_ids of bpf/bench/flow.h.
type flowIDs struct {
	client, spread, vip uint32
	port                uint16
}

// flowIDsOf is flow_ids_of of bpf/bench/flow.h.
func flowIDsOf(n, vips uint32) flowIDs {
	mixed := n * 0x2c1b3c6d
	mixed ^= mixed >> 15
	mixed *= 0x297a2d39
	client := (n * 0x1d8af) & 0x1ffff
	return flowIDs{
		client: client,
		spread: mixed,
		vip:    uint32(uint64(mixed) * uint64(vips) >> 32),
		port:   uint16(1024 + (((n>>17)*0x4d35 + client) & 0x7fff)),
	}
}

// memberOf is flow_member_of of bpf/bench/flow.h.
func memberOf(n, members uint32) uint16 {
	return uint16(uint64(n*0x9e3779b1) * uint64(members) >> 32)
}

// echo is the timestamp that a client of flow number n echoes: its cookie under the traffic's key.
func (t Traffic) echo(n uint32, p dataplane.Packet) uint32 {
	prf := cookie.PRF(CookieKey, cookie.Flow{
		Client: netip.AddrPortFrom(p.Client, p.ClientPort), VIP: netip.AddrPortFrom(p.VIP, p.Port),
	})
	return cookie.HostBits.Place(n, uint32(cookie.Encode(prf, 0, memberOf(n, t.CookieMembers), cookie.SecretOf(CookieKey))))
}

// packet returns flow number n of the traffic as the tables see it.
func (t Traffic) packet(n uint32) dataplane.Packet {
	ids := flowIDsOf(n, t.VIPs)
	p := dataplane.Packet{VIP: t.Family.VIP(ids.vip), Protocol: lb.TCP, ClientPort: ids.port, Port: Port}
	if t.Family == IPv4 {
		p.Client = add4(client4, ids.client)
	} else {
		p.Client = low6(client6, uint64(ids.spread)<<32|uint64(ids.client))
	}
	if t.QUIC > 0 {
		p.Protocol, p.Segment, p.CID = lb.UDP, dataplane.SegmentLater, t.cid(n&(cids-1))
	}
	if t.CookieMembers > 0 {
		p.Segment, p.Echo = dataplane.SegmentLater, t.echo(n, p)
	}
	return p
}

// add4 returns the IPv4 address n after a.
func add4(a netip.Addr, n uint32) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
	return netip.AddrFrom4(b)
}

// low6 returns the IPv6 address with the high half of a and the given low half.
func low6(a netip.Addr, low uint64) netip.Addr {
	b := a.As16()
	binary.BigEndian.PutUint64(b[8:], low)
	return netip.AddrFrom16(b)
}
