package probe

import (
	"cmp"
	"net/netip"
	"unique"

	"github.com/shuntlb/shunt/internal/lb"
)

// Way is the tunnel path to a member of an endpoint.
type Way struct {
	Endpoint lb.EndpointKey
	// Outer is the tunnel's destination, Encap its form (lb.EncapIPIP or lb.EncapGUE), Member the
	// member's id.
	Outer  netip.Addr
	Encap  string
	Member uint16
}

// Prepared is a check prepared for making many targets.
type Prepared struct {
	check  lb.Check
	handle unique.Handle[lb.Check]
}

// Prepare does the part of Wanted that is common to all members.
func Prepare(check lb.Check) Prepared { return Prepared{check, Of(check, netip.Addr{}, 0).Check} }

// Wanted returns the target that a check of a member probes; see Prepared.Wanted.
func Wanted(check lb.Check, dip netip.Addr, port uint16, w Way) Target {
	p := Prepare(check)
	return p.Wanted(dip, port, w)
}

// Wanted returns the target that the check of a member probes: that of Of or, when the check goes
// through the tunnel, the endpoint's VIP.
//
// The inner packet goes to the endpoint's port. An endpoint with a port range is probed on the
// check's port, else on its first. An endpoint with all ports is probed on the backend's port if
// the check has none. Target.Address is where the host delivers the packet.
func (p *Prepared) Wanted(dip netip.Addr, port uint16, w Way) Target {
	t := Target{Check: p.handle, Address: addressOf(&p.check, dip, port)}
	if p.check.Through != lb.ThroughTunnel {
		return t
	}
	inner, own := w.Endpoint.Port, port // the host rewrites the endpoint's port to the backend's
	if w.Endpoint.PortEnd != 0 {
		inner = cmp.Or(p.check.Port, w.Endpoint.Port, port)
		own = inner
	}
	t.Address = netip.AddrPortFrom(dip, own)
	tunnel := Tunnel{VNI: w.Endpoint.VNI, VIP: netip.AddrPortFrom(w.Endpoint.VIP, inner), Outer: w.Outer, Encap: w.Encap}
	if w.Encap == lb.EncapGUE {
		tunnel.Member = w.Member
	}
	t.Tunnel = unique.Make(tunnel)
	return t
}
