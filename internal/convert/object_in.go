// Package convert converts between the generated types of api/v1 and the domain's types. No other
// package does. It is pure.
package convert

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// reader collects the faults of one object; prefix is the path so far.
type reader struct {
	faults []lb.Violation
	prefix string
}

func (r *reader) fault(path, value, allowed string) {
	r.faults = append(r.faults, lb.Violation{Field: r.prefix + path, Value: value, Allowed: allowed})
}

// FromObject reads an object of the API. Defaults are filled in, so an empty field of the message
// is equivalent to its default. It returns the faults of values that the types cannot hold;
// lb.Validate finds the others. index is the object's place in the request.
func FromObject(o *apiv1.Object, index int) (lb.Object, []lb.Violation) {
	var out lb.Object
	r := &reader{}
	switch kind := o.GetKind().(type) {
	case *apiv1.Object_Service:
		if kind.Service != nil {
			r.prefix = lb.Ref(lb.KindService, kind.Service.GetName()) + ": "
			out = r.service(kind.Service)
		}
	case *apiv1.Object_Node:
		if kind.Node != nil {
			r.prefix = lb.Ref(lb.KindNode, kind.Node.GetName()) + ": "
			out = r.node(kind.Node)
		}
	case *apiv1.Object_Network:
		if kind.Network != nil {
			r.prefix = lb.Ref(lb.KindNetwork, kind.Network.GetName()) + ": "
			out = r.network(kind.Network)
		}
	case *apiv1.Object_Tenant:
		if kind.Tenant != nil {
			r.prefix = lb.Ref(lb.KindTenant, kind.Tenant.GetName()) + ": "
			out = r.tenant(kind.Tenant)
		}
	case *apiv1.Object_Policy:
		if kind.Policy != nil {
			r.prefix = lb.Ref(lb.KindPolicy, kind.Policy.GetName()) + ": "
			out = r.policy(kind.Policy)
		}
	}
	if out == nil {
		r.fault(fmt.Sprintf("objects[%d]", index), "", "must be one of service, node, network, tenant and policy")
		return nil, r.faults
	}
	if len(r.faults) > 0 {
		return nil, r.faults
	}
	lb.SetDefaults(out)
	return out, nil
}

func (r *reader) service(in *apiv1.Service) *lb.Service {
	s := &lb.Service{
		Name: in.GetName(), Tenant: in.GetTenant(), VIPs: r.addrs("vip", in.GetVip()), Policy: in.GetPolicy(),
		Limits: limits(in.GetLimits()), Sources: r.sources(in.GetSources()), Placement: placement(in.GetPlacement()),
	}
	for i, text := range in.GetSnat() {
		server, allowed := lb.ParseSNATServer(text)
		if allowed != "" {
			r.fault(fmt.Sprintf("snat[%d]", i), text, allowed)
		}
		s.SNAT = append(s.SNAT, server)
	}
	for i, ep := range in.GetEndpoints() {
		s.Endpoints = append(s.Endpoints, r.endpoint(fmt.Sprintf("endpoints[%d]", i), ep))
	}
	return s
}

func (r *reader) endpoint(path string, in *apiv1.Endpoint) lb.Endpoint {
	ep := lb.Endpoint{
		Path: in.GetPath(), Affinity: in.GetAffinity(), Scheduler: in.GetScheduler(), Rewrite: lb.Rewrite(in.GetRewrite()),
		Health: r.health(path+".health", in.GetHealth()), Source: r.source(path+".source", in.GetSource()),
		OnePacket: in.GetOnePacket(), Idle: r.idle(path+".idle", in.GetIdle()), Fragments: in.GetFragments(), Encap: in.GetEncap(),
		BackupBelow: r.percent(path+".backupBelow", in.GetBackupBelow()), FailOpen: in.GetFailOpen(),
		SlowStart: r.time(path+".slowStart", in.GetSlowStart()), DrainTimeout: r.time(path+".drainTimeout", in.GetDrainTimeout()),
		RepairWindow: r.timeOf(path+".repairWindow", in.GetRepairWindow()), HostIdle: r.hostIdle(path+".hostIdle", in.GetHostIdle()),
		Load: r.load(path+".load", in.GetLoad()), Schedule: lb.Schedule{By: in.GetSchedule().GetBy()},
		Cookie: lb.Cookie{Form: in.GetCookie().GetForm()}, Track: in.GetTrack(), Unhealthy: in.GetUnhealthy(), QUIC: r.quic(path+".quic", in.GetQuic()),
	}
	transport, allowed := lb.ParseTransport(in.GetProtocol())
	if allowed != "" {
		r.fault(path+".protocol", in.GetProtocol(), allowed)
	}
	ep.Protocol = transport.Protocol
	switch {
	case transport.QUIC && ep.QUIC == nil:
		ep.QUIC = &lb.QUIC{}
	case !transport.QUIC && ep.QUIC != nil:
		r.fault(path+".quic", "", "must be left out: the protocol is not quic")
	}
	if in.GetPort() != "" || ep.Protocol != lb.AnyProtocol {
		if ep.Port, ep.PortEnd, allowed = lb.ParsePorts(in.GetPort()); allowed != "" {
			r.fault(path+".port", in.GetPort(), allowed)
		}
	}
	for i, b := range in.GetBackends() {
		ep.Backends = append(ep.Backends, r.backend(fmt.Sprintf("%s.backends[%d]", path, i), b))
	}
	return ep
}

func (r *reader) backend(path string, in *apiv1.Backend) lb.Backend {
	b := lb.Backend{
		DIPs: r.addrs(path+".dip", in.GetDip()), Drain: in.GetDrain(), Backup: in.GetBackup(), Weight: 1,
		Port: r.uint16(path+".port", in.GetPort(), "must be 1 to 65535, or 0 for the endpoint's port"),
		Host: r.optional(path+".host", in.GetHost()),
	}
	if in != nil && in.Weight != nil {
		b.Weight = r.uint16(path+".weight", in.GetWeight(), "must be 0 to 1000")
	}
	return b
}

func (r *reader) source(path string, in *apiv1.SourceAffinity) *lb.SourceAffinity {
	if in == nil {
		return nil
	}
	return &lb.SourceAffinity{
		Prefix4: r.byte(path+".prefix4", in.GetPrefix4(), "must be 1 to 32"),
		Prefix6: r.byte(path+".prefix6", in.GetPrefix6(), "must be 1 to 128"), For: r.duration(path+".for", in.GetFor()),
	}
}

func (r *reader) idle(path string, in *apiv1.Idle) lb.Idle {
	return lb.Idle{Untrusted: r.duration(path+".untrusted", in.GetUntrusted()), Trusted: r.duration(path+".trusted", in.GetTrusted())}
}

func (r *reader) hostIdle(path string, in *apiv1.HostIdle) lb.HostIdle {
	return lb.HostIdle{
		Established: r.duration(path+".established", in.GetEstablished()), Opening: r.duration(path+".opening", in.GetOpening()),
		Closing: r.duration(path+".closing", in.GetClosing()), UDP: r.duration(path+".udp", in.GetUdp()), Other: r.duration(path+".other", in.GetOther()),
	}
}

func (r *reader) load(path string, in *apiv1.Load) lb.Load {
	out := lb.Load{
		Interval: r.duration(path+".interval", in.GetInterval()), Timeout: r.duration(path+".timeout", in.GetTimeout()),
		Stale: r.duration(path+".stale", in.GetStale()),
	}
	if h := in.GetHttp(); h != nil {
		out.HTTP = lb.LoadHTTP{
			Path: cmp.Or(h.GetPath(), lb.DefaultLoadPath), Host: h.GetHost(), Port: r.uint16(path+".http.port", h.GetPort(), "must be 1 to 65535"),
		}
	}
	return out
}

// quic reads the format of connection ids; nil when it is not set.
func (r *reader) quic(path string, in *apiv1.QUIC) *lb.QUIC {
	if in == nil {
		return nil
	}
	return &lb.QUIC{
		Format: in.GetFormat(), ServerIDLength: r.byte(path+".serverIdLength", in.GetServerIdLength(), "must be 2 to 15"),
		NonceLength: r.byte(path+".nonceLength", in.GetNonceLength(), "must be 4 to 18"),
	}
}

func (r *reader) node(in *apiv1.Node) *lb.Node {
	return &lb.Node{
		Name: in.GetName(), Role: lb.Role(in.GetRole()), Zone: in.GetZone(), Drain: in.GetDrain(),
		Addresses: r.addrs("address", in.GetAddress()), BGP: r.bgp(in.GetBgp()),
		Capacity: lb.Capacity{VIPs: in.GetCapacity().GetVips(), Packets: in.GetCapacity().GetPackets()}, NAT: r.nat("nat", in.GetNat()),
	}
}

// nat reads the addresses from which a mux sends; nil when it is not set.
func (r *reader) nat(path string, in *apiv1.NAT) *lb.NAT {
	if in == nil {
		return nil
	}
	out := &lb.NAT{Addresses: r.addrs(path+".addresses", in.GetAddresses())}
	if in.GetPorts() != "" {
		var allowed string
		if out.Low, out.High, allowed = lb.ParseNATPorts(in.GetPorts()); allowed != "" {
			r.fault(path+".ports", in.GetPorts(), allowed)
		}
	}
	return out
}

func (r *reader) bgp(in *apiv1.BGP) *lb.BGP {
	if in == nil {
		return nil
	}
	out := &lb.BGP{ASN: in.GetAsn()}
	out.RouterID = r.optional("bgp.routerId", in.GetRouterId())
	for i, p := range in.GetPeers() {
		path := fmt.Sprintf("bgp.peers[%d]", i)
		peer := lb.BGPPeer{
			Address: r.addr(path+".address", p.GetAddress()), ASN: p.GetAsn(), PasswordFile: p.GetPasswordFile(),
			TTLSecurity: p.GetTtlSecurity(), Multihop: p.GetMultihop(),
		}
		if bfd := p.GetBfd(); bfd != nil {
			peer.BFD = &lb.BFD{
				Transmit: r.duration(path+".bfd.transmit", bfd.GetTransmit()),
				Receive:  r.duration(path+".bfd.receive", bfd.GetReceive()), Multiplier: bfd.GetMultiplier(),
			}
		}
		out.Peers = append(out.Peers, peer)
	}
	return out
}

func (r *reader) network(in *apiv1.Network) *lb.Network {
	return &lb.Network{
		Name: in.GetName(), MTU: in.GetMtu(), VIPs: r.prefixes("vips", in.GetVips()),
		Underlay: r.prefixes("underlay", in.GetUnderlay()), TunnelSources: r.prefixes("tunnelSources", in.GetTunnelSources()),
		Encap: in.GetEncap(), Switches: r.prefixes("switches", in.GetSwitches()),
		SNAT: lb.SNATTimes{Idle: r.duration("snat.idle", in.GetSnat().GetIdle()), Quarantine: r.duration("snat.quarantine", in.GetSnat().GetQuarantine())},
	}
}

func (r *reader) addr(path, in string) netip.Addr {
	a, allowed := lb.ParseAddr(in)
	if allowed != "" {
		r.fault(path, in, allowed)
	}
	return a
}

// optional reads an address that may be absent: lb.Validate checks where it is required.
func (r *reader) optional(path, in string) netip.Addr {
	if in == "" {
		return netip.Addr{}
	}
	return r.addr(path, in)
}

func (r *reader) addrs(path string, in []string) []netip.Addr {
	var out []netip.Addr
	for i, s := range in {
		out = append(out, r.addr(fmt.Sprintf("%s[%d]", path, i), s))
	}
	return out
}

func (r *reader) prefixes(path string, in []string) []netip.Prefix {
	var out []netip.Prefix
	if len(in) > 0 {
		out = make([]netip.Prefix, 0, len(in))
	}
	for i, s := range in {
		p, allowed := lb.ParsePrefix(s)
		if allowed != "" {
			r.fault(fmt.Sprintf("%s[%d]", path, i), s, allowed)
		}
		out = append(out, p)
	}
	return out
}

func (r *reader) uint16(path string, in uint32, allowed string) uint16 {
	if in > math.MaxUint16 {
		r.fault(path, strconv.FormatUint(uint64(in), 10), allowed)
		return 0
	}
	return uint16(in)
}

func (r *reader) byte(path string, in uint32, allowed string) uint8 {
	if in > math.MaxUint8 {
		r.fault(path, strconv.FormatUint(uint64(in), 10), allowed)
		return 0
	}
	return uint8(in)
}

func (r *reader) percent(path string, in uint32) uint8 { return r.byte(path, in, "must be 1 to 100") }

// time reads a duration that may be 0.
func (r *reader) time(path string, in *durationpb.Duration) time.Duration {
	if in != nil && in.CheckValid() != nil {
		r.fault(path, in.AsDuration().String(), "must be a duration")
		return 0
	}
	return in.AsDuration()
}

// timeOf reads a duration that may be absent, and may be 0.
func (r *reader) timeOf(path string, in *durationpb.Duration) *time.Duration {
	if in == nil {
		return nil
	}
	return new(r.time(path, in))
}

// duration reads a duration that is not 0 when it is set.
func (r *reader) duration(path string, in *durationpb.Duration) time.Duration {
	if in == nil {
		return 0
	}
	d := in.AsDuration()
	if in.CheckValid() != nil || d <= 0 {
		r.fault(path, d.String(), "must be longer than 0s")
		return 0
	}
	return d
}
