package probe

import (
	"cmp"
	"net/netip"
	"unique"

	"github.com/shuntlb/shunt/internal/lb"
)

// Way is where a member of an endpoint is reached through the tunnel.
type Way struct {
	Endpoint lb.EndpointKey
	// Outer is the tunnel's destination, Encap its form (lb.EncapIPIP or lb.EncapGUE), Member the member's id.
	Outer  netip.Addr
	Encap  string
	Member uint16
}

// Prepared is a check whose targets are made many times.
type Prepared struct {
	check  lb.Check
	handle unique.Handle[lb.Check]
}

// Prepare does once what Wanted does for each member.
func Prepare(check lb.Check) Prepared { return Prepared{check, Of(check, netip.Addr{}, 0).Check} }

// Wanted is what a check of a member probes, as Prepared.Wanted says.
func Wanted(check lb.Check, dip netip.Addr, port uint16, w Way) Target {
	p := Prepare(check)
	return p.Wanted(dip, port, w)
}

// Wanted is what the check of a member probes: what Of says, or the endpoint's VIP through the tunnel, when the check asks for that.
//
// The inner packet goes to the endpoint's port. An endpoint of many ports is asked on the check's port, else on its first, and one
// of all ports on the backend's when the check has none. Target.Address is where the host delivers it.
func (p *Prepared) Wanted(dip netip.Addr, port uint16, w Way) Target {
	t := Target{Check: p.handle, Address: addressOf(&p.check, dip, port)}
	if p.check.Through != lb.ThroughTunnel {
		return t
	}
	inner, own := w.Endpoint.Port, port // the host turns the endpoint's port into the backend's
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
