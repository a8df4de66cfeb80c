package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/place"
)

// DefaultMTU is the underlay's MTU if no Network sets it.
const DefaultMTU = 1500

// State is the input of all plans at one revision. Objects in it have their defaults filled in.
type State struct {
	Revision int64
	Epoch    int64
	Networks map[string]*lb.Network
	Nodes    map[string]*lb.Node
	Services map[string]*lb.Service
	// Created are the revisions that created services, by name.
	Created   map[string]int64
	Tenants   map[string]*lb.Tenant
	Policies  map[string]*lb.Policy
	Endpoints map[lb.EndpointKey]EndpointState
	// ordered by ID: the cluster's key, then secrets that muxes and hosts do not get (RingKeyOf)
	RingKeys []Key
	// Places has the VIPs that are placed.
	Places map[place.Key]Place
	// Cookies has the keys of VIPs, CIDs those of services, including those that need none now.
	Cookies map[place.Key]KeySet
	CIDs    map[string]KeySet
	// Tunnels has the changes of tunnelSources in progress, by Network.
	Tunnels map[string]TunnelChange
}

// HostBinding is a binding and the host address that selects its node.
type HostBinding struct {
	Host    netip.Addr
	Binding Binding
}

// EachEndpoint calls f for every endpoint of every VIP of the service. The VNI is 0 for all (the
// underlay).
func EachEndpoint(s *lb.Service, f func(key lb.EndpointKey, ep *lb.Endpoint)) {
	for i := range s.Endpoints {
		ep := &s.Endpoints[i]
		for _, vip := range s.VIPs {
			f(lb.EndpointKey{VIP: vip, Protocol: ep.Protocol, Port: ep.Port, PortEnd: ep.PortEnd}, ep)
		}
	}
}

// WantedMembers returns the backends that serve the VIP; draining ones have weight 0.
func WantedMembers(ep *lb.Endpoint, vip netip.Addr) []Wanted {
	var out []Wanted
	for i := range ep.Backends {
		b := &ep.Backends[i]
		if dip, ok := b.DIP(vip); ok {
			out = append(out, Wanted{Backend: lb.BackendKey{DIP: dip, Port: b.Port}, Weight: effectiveWeight(b), Backup: b.Backup})
		}
	}
	return out
}

func effectiveWeight(b *lb.Backend) uint16 {
	if b.Drain {
		return 0
	}
	return b.Weight
}

// MakeEndpoint returns the endpoint for muxes. keys are the live ring keys, encap is that of the
// VIP's Network.
func MakeEndpoint(s *lb.Service, ep *lb.Endpoint, st *EndpointState, keys []Key, encap string) Endpoint {
	base, tweak, _ := RingKeyOf(keys, st.KeyID, st.Key)
	out := Endpoint{
		Key: st.Key, Service: s.Name, Generation: st.Generation, RingCode: st.RingCode, KeyID: base.ID, RingTweak: tweak,
		Health: ep.Health, Members: make([]Member, 0, len(st.Members)),
		Affinity: ep.Affinity, Source: ep.Source, OnePacket: ep.OnePacket, Idle: ep.Idle, Fragments: ep.Fragments,
		Encap: cmp.Or(ep.Encap, encap), BackupBelow: ep.BackupBelow, FailOpen: ep.FailOpen,
		Scheduler: ep.Scheduler, ScheduleBy: ep.Schedule.By, Track: ep.Track, QUIC: ep.QUIC, Cookie: ep.Cookie.Form,
		NAT: ep.Translated(), FlowsFirst: ep.Cookies() && !st.Young.IsZero(), KeepDead: ep.KeepsDead(),
	}
	if out.NAT {
		out.Encap = lb.EncapIPIP // there is no tunnel
	}
	// SYNs go into the flow table, which takes precedence; other packets may carry a cookie
	if st.Fades(ep) {
		out.Affinity, out.Cookie, out.QUIC, out.FlowsFirst = lb.AffinityCookie, st.Form, st.QUIC, true
		// muxes trust no QUIC flow: a flow without an id gets the idle time that it would have
		// without ids
		if st.QUIC != nil {
			out.Idle.Untrusted = out.Idle.Trusted
		}
	}
	hosts := HostsOf(ep, st.Key.VIP)
	for _, m := range st.Members {
		out.Members = append(out.Members, Member{
			ID: m.ID, DIP: m.Backend.DIP, Port: m.Backend.Port, Weight: m.Weight, Backup: m.Backup, Down: m.Down,
			Outer: outerOf(ep, m.Backend.DIP, hosts[m.Backend]),
		})
		if ep.Health.From == lb.FromHost {
			out.Members[len(out.Members)-1].Host = hosts[m.Backend]
		}
	}
	return out
}

// outerOf returns the outer destination of packets to a member: with path nat the member itself.
func outerOf(ep *lb.Endpoint, dip, host netip.Addr) netip.Addr {
	if ep.Translated() {
		return dip
	}
	return lb.Outer(dip, host)
}

// MakeService returns the shared data of the service's endpoints for muxes; created is the revision
// that created the service.
func MakeService(s *lb.Service, policies map[string]*lb.Policy, created int64) Service {
	e := lb.Effective(s, policies)
	out := Service{Name: s.Name, VIPs: s.VIPs, Limits: e.Limits, SourcesOf: e.SourcesOf, Outbound: s.Outbound(), Tenant: s.Tenant, Created: created}
	if out.SourcesOf == "" {
		out.Sources = *e.Sources
	}
	return out
}

// MakeSources returns a policy's source list for muxes.
func MakeSources(p *lb.Policy) Sources { return Sources{Policy: p.Name, Sources: *p.Sources} }

// MakeBindings returns the bindings of the endpoint's members for their hosts, and of recent
// members, to which hosts forward their flows. It omits a recent member whose tunnel is the same as
// that of a later member: with IPIP, one that had another port of the same DIP. encap is that of
// the VIP's Network. With path nat it returns none, because hosts do not take part.
func MakeBindings(s *lb.Service, ep *lb.Endpoint, st *EndpointState, encap string) []HostBinding {
	if ep.Translated() {
		return nil
	}
	out := make([]HostBinding, 0, len(st.Members))
	hosts := HostsOf(ep, st.Key.VIP)
	bind := func(m *MemberState, host netip.Addr, health lb.Health) Binding {
		return Binding{
			Key: st.Key, Service: s.Name, Member: m.ID, Outer: lb.Outer(m.Backend.DIP, host),
			DIP: m.Backend.DIP, DIPPort: m.Backend.Port, Rewrite: ep.Rewrite != lb.RewriteNone, Encap: cmp.Or(ep.Encap, encap),
			Idle: ep.HostIdle, Health: health, Load: ep.Load, Cookie: ep.Cookie.Form == lb.CookieEVC || ep.Cookie.Form == lb.CookieCO, QUIC: ep.QUIC,
			Tenant: s.Tenant,
		}
	}
	var health lb.Health
	if ep.Health.ByHost() {
		health = ep.Health
	}
	for i := range st.Members {
		m := &st.Members[i]
		b := bind(m, hosts[m.Backend], health)
		if !m.Backup && !m.Down {
			b.Share = m.Weight
		}
		out = append(out, HostBinding{Host: hosts[m.Backend], Binding: b})
	}
	if ep.Repairs() == 0 || len(st.History) == 0 {
		return out
	}
	named := make(map[tunnelName]bool, len(out))
	for i := range out {
		named[out[i].Binding.tunnelName()] = true
	}
	for _, m := range st.Former() {
		b := bind(&m, m.Host, lb.Health{})
		if name := b.tunnelName(); !named[name] {
			named[name] = true
			out = append(out, HostBinding{Host: m.Host, Binding: b})
		}
	}
	return out
}

// ShareWith clears the share if there are no switches, so that a change of weights does not change
// bindings.
func (b *Binding) ShareWith(switches []netip.Prefix) {
	if len(switches) == 0 {
		b.Share = 0
	}
}

// HostsOf returns the host address of each backend that serves the VIP.
func HostsOf(ep *lb.Endpoint, vip netip.Addr) map[lb.BackendKey]netip.Addr {
	out := make(map[lb.BackendKey]netip.Addr, len(ep.Backends))
	for i := range ep.Backends {
		b := &ep.Backends[i]
		if dip, ok := b.DIP(vip); ok {
			out[lb.BackendKey{DIP: dip, Port: b.Port}] = b.Host
		}
	}
	return out
}

// AllNetworks returns the Networks in order.
func (s *State) AllNetworks() lb.Networks {
	return lb.SortNetworks(slices.Collect(maps.Values(s.Networks)))
}

// Surround sets the MTU and prefixes of a plan from the Networks around its node. A mux has the
// outer sources of its own Network. A host has those of its own Network first, and those of all
// others, because muxes of every Network tunnel to it.
func (s *State) Surround(p *Plan) {
	networks := s.networksFor(p.Node.Role)
	home := networks.Home(p.Node.Addresses)
	if home == nil {
		p.MTU = DefaultMTU
		return
	}
	p.MTU, p.TunnelSources = home.MTU, home.TunnelSources
	if p.Node.Role == lb.RoleHost {
		p.TunnelSources, p.VIPs, p.Underlay = networks.TunnelSources(home), networks.VIPs(), networks.Underlay()
		p.Inside, p.Switches = networks.Inside(), networks.Switches()
	}
}

// ForNode computes the plan of one node from scratch. A node without a Node object has an empty
// plan.
func ForNode(s *State, name string) Plan {
	p := Plan{Revision: s.Revision, Epoch: s.Epoch}
	node, ok := s.Nodes[name]
	if !ok {
		return p
	}
	p.Node = *node
	s.Surround(&p)
	if node.Role == lb.RoleMux {
		p.RingKeys = slices.Clone(s.RingKeys[:min(1, len(s.RingKeys))])
	}
	networks := s.AllNetworks()
	for _, svc := range s.Services {
		served := func(vip netip.Addr) bool { return s.serves(name, svc, vip) }
		if node.Role == lb.RoleMux && slices.ContainsFunc(svc.VIPs, served) {
			shared := MakeService(svc, s.Policies, s.Created[svc.Name])
			p.Services = append(p.Services, shared)
			if of := shared.SourcesOf; of != "" && !slices.ContainsFunc(p.Sources, func(l Sources) bool { return l.Policy == of }) {
				p.Sources = append(p.Sources, MakeSources(s.Policies[of]))
			}
		}
		stamped := map[netip.Addr]bool{} // VIPs whose cookies the node stamps or reads
		if KeysOfCookies.Needs(svc) && node.Role == lb.RoleMux {
			for _, vip := range svc.VIPs {
				stamped[vip] = served(vip)
			}
		}
		if set, ok := s.CIDs[svc.Name]; ok && node.Role == lb.RoleMux {
			for _, vip := range svc.VIPs {
				if served(vip) && (KeysOfCIDs.Needs(svc) || KeysOfCIDs.Fade(svc, vip, s.Endpoints)) {
					p.CIDs = append(p.CIDs, set.CIDs(vip))
				}
			}
		}
		EachEndpoint(svc, func(key lb.EndpointKey, ep *lb.Endpoint) {
			st, ok := s.Endpoints[key]
			if !ok {
				return
			}
			switch node.Role {
			case lb.RoleMux:
				if served(key.VIP) {
					stamped[key.VIP] = stamped[key.VIP] || KeysOfCookies.fades(ep, &st)
					p.Endpoints = append(p.Endpoints, MakeEndpoint(svc, ep, &st, s.RingKeys, networks.Encap(key.VIP)))
				}
			case lb.RoleHost:
				bound := len(p.Bindings)
				for _, hb := range MakeBindings(svc, ep, &st, networks.Encap(key.VIP)) {
					if slices.Contains(node.Addresses, hb.Host) {
						hb.Binding.ShareWith(p.Switches)
						hb.Binding.Created = s.Created[svc.Name]
						p.Bindings = append(p.Bindings, hb.Binding)
						stamped[key.VIP] = stamped[key.VIP] || hb.Binding.Cookie
					}
				}
				if r, ok := MakeRepair(ep, &st, s.RingKeys, networks.Encap(key.VIP)); ok && len(p.Bindings) > bound {
					p.Repairs = append(p.Repairs, *r)
				}
			}
		})
		for vip, ok := range stamped {
			set, known := s.Cookies[VIPKey(vip)]
			if !ok || !known {
				continue
			}
			if node.Role == lb.RoleMux {
				p.Cookies = append(p.Cookies, set.MuxCookies(vip))
			} else if keys, some := set.HostCookies(vip); some {
				p.Cookies = append(p.Cookies, keys)
			}
		}
	}
	slices.SortFunc(p.Endpoints, func(a, b Endpoint) int { return CompareKeys(a.Key, b.Key) })
	slices.SortFunc(p.Services, CompareServices)
	slices.SortFunc(p.Sources, CompareSources)
	slices.SortFunc(p.Bindings, CompareBindings)
	slices.SortFunc(p.Repairs, CompareRepairs)
	slices.SortFunc(p.Cookies, CompareCookies)
	slices.SortFunc(p.CIDs, CompareCIDs)
	return p
}
