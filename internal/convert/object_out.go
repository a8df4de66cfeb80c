package convert

import (
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// ToObject writes an object for the API.
func ToObject(o lb.Object) *apiv1.Object {
	switch o := o.(type) {
	case *lb.Service:
		return &apiv1.Object{Kind: &apiv1.Object_Service{Service: ToService(o)}}
	case *lb.Node:
		return &apiv1.Object{Kind: &apiv1.Object_Node{Node: ToNode(o)}}
	case *lb.Network:
		return &apiv1.Object{Kind: &apiv1.Object_Network{Network: ToNetwork(o)}}
	case *lb.Tenant:
		return &apiv1.Object{Kind: &apiv1.Object_Tenant{Tenant: ToTenant(o)}}
	case *lb.Policy:
		return &apiv1.Object{Kind: &apiv1.Object_Policy{Policy: ToPolicy(o)}}
	}
	panic(fmt.Sprintf("convert: object of type %T", o))
}

// ToService writes a service.
func ToService(s *lb.Service) *apiv1.Service {
	out := &apiv1.Service{
		Name: s.Name, Tenant: s.Tenant, Vip: texts(s.VIPs), Policy: s.Policy,
		Limits: toLimits(s.Limits), Sources: toSources(s.Sources), Placement: toPlacement(s.Placement), Snat: texts(s.SNAT),
	}
	for i := range s.Endpoints {
		out.Endpoints = append(out.Endpoints, toEndpoint(&s.Endpoints[i]))
	}
	return out
}

func toEndpoint(ep *lb.Endpoint) *apiv1.Endpoint {
	out := &apiv1.Endpoint{
		Protocol: ep.ProtocolName(), Port: lb.PortsText(ep.Port, ep.PortEnd), Path: ep.Path, Affinity: ep.Affinity,
		Scheduler: ep.Scheduler, Rewrite: string(ep.Rewrite), Health: toHealth(ep.Health), Source: toSource(ep.Source),
		OnePacket: ep.OnePacket, Idle: toIdle(ep.Idle), Fragments: ep.Fragments, Encap: ep.Encap, BackupBelow: uint32(ep.BackupBelow),
		FailOpen: ep.FailOpen, SlowStart: duration(ep.SlowStart), DrainTimeout: duration(ep.DrainTimeout), HostIdle: toHostIdle(ep.HostIdle),
		Load: toLoad(ep.Load), Track: ep.Track, Unhealthy: ep.Unhealthy, Quic: toQUIC(ep.QUIC),
	}
	if ep.Schedule != (lb.Schedule{}) {
		out.Schedule = &apiv1.Schedule{By: ep.Schedule.By}
	}
	if ep.Cookie != (lb.Cookie{}) {
		out.Cookie = &apiv1.Cookie{Form: ep.Cookie.Form}
	}
	// Omit the default, because managers of the previous schema do not know the field and must be
	// able to change the service while one of them is running.
	if ep.RepairWindow != nil && *ep.RepairWindow != lb.DefaultRepairWindow {
		out.RepairWindow = durationOf(ep.RepairWindow)
	}
	for i := range ep.Backends {
		b := &ep.Backends[i]
		weight := uint32(b.Weight)
		out.Backends = append(out.Backends, &apiv1.Backend{
			Dip: texts(b.DIPs), Port: uint32(b.Port), Host: text(b.Host), Weight: &weight, Drain: b.Drain, Backup: b.Backup,
		})
	}
	return out
}

func toSource(s *lb.SourceAffinity) *apiv1.SourceAffinity {
	if s == nil {
		return nil
	}
	return &apiv1.SourceAffinity{Prefix4: uint32(s.Prefix4), Prefix6: uint32(s.Prefix6), For: duration(s.For)}
}

func toIdle(i lb.Idle) *apiv1.Idle {
	if i == (lb.Idle{}) {
		return nil
	}
	return &apiv1.Idle{Untrusted: duration(i.Untrusted), Trusted: duration(i.Trusted)}
}

// toHostIdle writes the times that are set; nil when none is.
func toHostIdle(h lb.HostIdle) *apiv1.HostIdle {
	if h == (lb.HostIdle{}) {
		return nil
	}
	return &apiv1.HostIdle{
		Established: duration(h.Established), Opening: duration(h.Opening), Closing: duration(h.Closing), Udp: duration(h.UDP), Other: duration(h.Other),
	}
}

// toLoad writes the fields that are set; nil when none is.
func toLoad(l lb.Load) *apiv1.Load {
	if l == (lb.Load{}) {
		return nil
	}
	out := &apiv1.Load{Interval: duration(l.Interval), Timeout: duration(l.Timeout), Stale: duration(l.Stale)}
	if l.Asked() {
		out.Http = &apiv1.LoadHTTP{Path: l.HTTP.Path, Host: l.HTTP.Host, Port: uint32(l.HTTP.Port)}
	}
	return out
}

// toQUIC writes the format of connection ids; nil when the protocol is not QUIC.
func toQUIC(q *lb.QUIC) *apiv1.QUIC {
	if q == nil {
		return nil
	}
	return &apiv1.QUIC{Format: q.Format, ServerIdLength: uint32(q.ServerIDLength), NonceLength: uint32(q.NonceLength)}
}

// ToNode writes a node.
func ToNode(n *lb.Node) *apiv1.Node {
	out := &apiv1.Node{Name: n.Name, Role: string(n.Role), Zone: n.Zone, Address: texts(n.Addresses), Drain: n.Drain}
	if c := n.Capacity; c != (lb.Capacity{}) {
		out.Capacity = &apiv1.Capacity{Vips: c.VIPs, Packets: c.Packets}
	}
	if n.NAT != nil {
		out.Nat = &apiv1.NAT{Addresses: texts(n.NAT.Addresses), Ports: lb.PortsText(n.NAT.Low, n.NAT.High)}
	}
	if n.BGP == nil {
		return out
	}
	out.Bgp = &apiv1.BGP{Asn: n.BGP.ASN, RouterId: text(n.BGP.RouterID)}
	for _, p := range n.BGP.Peers {
		peer := &apiv1.BGPPeer{Address: text(p.Address), Asn: p.ASN, PasswordFile: p.PasswordFile, TtlSecurity: p.TTLSecurity, Multihop: p.Multihop}
		if p.BFD != nil {
			peer.Bfd = &apiv1.BFD{Transmit: duration(p.BFD.Transmit), Receive: duration(p.BFD.Receive), Multiplier: p.BFD.Multiplier}
		}
		out.Bgp.Peers = append(out.Bgp.Peers, peer)
	}
	return out
}

// ToNetwork writes a network.
func ToNetwork(n *lb.Network) *apiv1.Network {
	return &apiv1.Network{
		Name: n.Name, Mtu: n.MTU, Vips: texts(n.VIPs), Underlay: texts(n.Underlay), TunnelSources: texts(n.TunnelSources), Encap: n.Encap,
		Switches: texts(n.Switches), Snat: toSNATTimes(n.SNAT),
	}
}

func toSNATTimes(t lb.SNATTimes) *apiv1.SnatTimes {
	if t == (lb.SNATTimes{}) {
		return nil
	}
	return &apiv1.SnatTimes{Idle: duration(t.Idle), Quarantine: duration(t.Quarantine)}
}

// text returns an address as text; the zero address is empty.
func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func texts[T fmt.Stringer](in []T) []string {
	out := make([]string, 0, len(in))
	for _, v := range in {
		out = append(out, v.String())
	}
	return out
}

// durationOf writes a duration that may be absent.
func durationOf(d *time.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(*d)
}

func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
