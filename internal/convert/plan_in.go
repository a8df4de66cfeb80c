package convert

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/plan"
)

// FromItems reads a full plan; the caller sets Revision and Epoch. Keys of items must be unique.
func FromItems(items []*apiv1.PlanItem) (plan.Plan, error) {
	var p plan.Plan
	for _, item := range items {
		if err := addItem(&p, item); err != nil {
			return plan.Plan{}, fmt.Errorf("plan item %q: %w", item.GetKey(), err)
		}
	}
	slices.SortFunc(p.RingKeys, func(a, b plan.Key) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(p.Services, plan.CompareServices)
	slices.SortFunc(p.Sources, plan.CompareSources)
	slices.SortFunc(p.Endpoints, func(a, b plan.Endpoint) int { return plan.CompareKeys(a.Key, b.Key) })
	slices.SortFunc(p.Bindings, plan.CompareBindings)
	slices.SortFunc(p.Repairs, plan.CompareRepairs)
	slices.SortFunc(p.Cookies, plan.CompareCookies)
	slices.SortFunc(p.CIDs, plan.CompareCIDs)
	return p, nil
}

// addItem reads one item. Its key must match its content.
func addItem(p *plan.Plan, item *apiv1.PlanItem) error {
	var key string
	var err error
	switch it := item.GetItem().(type) {
	case *apiv1.PlanItem_Node:
		key, err = plan.NodeItem, FromPlanNode(p, it.Node)
	case *apiv1.PlanItem_RingKey:
		var k plan.Key
		k, err = FromPlanKey(it.RingKey)
		key, p.RingKeys = plan.KeyItem(k.ID), append(p.RingKeys, k)
	case *apiv1.PlanItem_Endpoint:
		var ep plan.Endpoint
		ep, err = FromPlanEndpoint(it.Endpoint)
		key, p.Endpoints = plan.EndpointItem(ep.Key), append(p.Endpoints, ep)
	case *apiv1.PlanItem_Binding:
		var b plan.Binding
		b, err = FromPlanBinding(it.Binding)
		key, p.Bindings = plan.BindingItem(b.Key, b.Outer, b.Member), append(p.Bindings, b)
	case *apiv1.PlanItem_Repair:
		var rep plan.Repair
		rep, err = FromPlanRepair(it.Repair)
		key, p.Repairs = plan.RepairItem(rep.Key), append(p.Repairs, rep)
	case *apiv1.PlanItem_Service:
		var svc plan.Service
		svc, err = FromPlanService(it.Service)
		key, p.Services = plan.ServiceItem(svc.Name), append(p.Services, svc)
	case *apiv1.PlanItem_Sources:
		var list plan.Sources
		list, err = FromPlanSources(it.Sources)
		key, p.Sources = plan.SourcesItem(list.Policy), append(p.Sources, list)
	case *apiv1.PlanItem_Cookies:
		var keys plan.CookieKeys
		keys, err = FromPlanCookies(it.Cookies)
		key, p.Cookies = plan.CookiesItem(keys.VNI, keys.VIP), append(p.Cookies, keys)
	case *apiv1.PlanItem_Cids:
		var keys plan.CIDKeys
		keys, err = FromPlanCIDs(it.Cids)
		key, p.CIDs = plan.CIDsItem(keys.VNI, keys.VIP), append(p.CIDs, keys)
	default:
		err = fmt.Errorf("item: %T: must be node, ring_key, service, sources, endpoint, binding, repair, cookies or cids", it)
	}
	if err == nil && key != item.GetKey() {
		err = fmt.Errorf("key: %q: must be %q", item.GetKey(), key)
	}
	return err
}

// FromPlanNode reads the node's own part of a plan into p.
func FromPlanNode(p *plan.Plan, in *apiv1.PlanNode) error {
	r := &reader{}
	node := r.node(in.GetNode())
	sources := r.prefixes("tunnel_sources", in.GetTunnelSources())
	vips, underlay, inside := r.prefixes("vips", in.GetVips()), r.prefixes("underlay", in.GetUnderlay()), r.prefixes("inside", in.GetInside())
	switches := r.prefixes("switches", in.GetSwitches())
	if err := r.err(); err != nil {
		return err
	}
	lb.SetDefaults(node)
	p.Node, p.MTU, p.TunnelSources, p.VIPs, p.Underlay, p.Inside = *node, in.GetMtu(), sources, vips, underlay, inside
	p.Switches = switches
	return nil
}

// FromPlanKey reads a ring hash key.
func FromPlanKey(in *apiv1.PlanKey) (plan.Key, error) {
	k := plan.Key{ID: in.GetId()}
	if n := copy(k.Key[:], in.GetKey()); n != len(k.Key) || len(in.GetKey()) != n {
		return k, fmt.Errorf("key: %d bytes: must be %d bytes", len(in.GetKey()), len(k.Key))
	}
	return k, nil
}

// FromPlanEndpoint reads an endpoint.
func FromPlanEndpoint(in *apiv1.PlanEndpoint) (plan.Endpoint, error) {
	r := &reader{}
	ep := plan.Endpoint{
		Key:     r.key(in.GetVni(), in.GetVip(), in.GetProtocol(), in.GetPort(), in.GetPortEnd()),
		Service: in.GetService(), Generation: in.GetGeneration(), RingCode: uint8(r.upTo("ring_code", in.GetRingCode(), 32)),
		KeyID: in.GetKeyId(), RingTweak: in.GetRingTweak(), Health: r.planCheck(in.GetCheck()), Members: make([]plan.Member, 0, len(in.GetMembers())),
		Affinity: in.GetAffinity(), Source: r.source("source", in.GetSource()), OnePacket: in.GetOnePacket(), Idle: r.idle("idle", in.GetIdle()),
		Fragments: in.GetFragments(), Encap: in.GetEncap(), BackupBelow: r.percent("backup_below", in.GetBackupBelow()), FailOpen: in.GetFailOpen(),
		Scheduler: cmp.Or(in.GetScheduler(), lb.SchedulerMaglev), ScheduleBy: in.GetScheduleBy(), Track: in.GetTrack(),
		QUIC: r.quic("quic", in.GetQuic()), Cookie: in.GetCookie(), NAT: in.GetNat(), FlowsFirst: in.GetFlowsFirst(), KeepDead: in.GetKeepDead(),
	}
	for i, m := range in.GetMembers() {
		path := fmt.Sprintf("members[%d]", i)
		ep.Members = append(ep.Members, plan.Member{
			ID: r.word(path+".id", m.GetId()), DIP: r.addr(path+".dip", m.GetDip()), Port: r.word(path+".port", m.GetPort()),
			Weight: r.word(path+".weight", m.GetWeight()), Outer: r.addr(path+".outer", m.GetOuter()),
			Backup: m.GetBackup(), Down: m.GetDown(), Host: r.optional(path+".host", m.GetHost()),
		})
	}
	slices.SortFunc(ep.Members, func(a, b plan.Member) int { return cmp.Compare(a.ID, b.ID) })
	return ep, r.err()
}

// FromPlanService reads the shared data of a service's endpoints.
func FromPlanService(in *apiv1.PlanService) (plan.Service, error) {
	r := &reader{}
	s := plan.Service{
		Name: in.GetName(), VIPs: r.addrs("vip", in.GetVip()),
		Sources:   lb.Sources{Allow: r.unpackPrefixes("allow", in.GetAllow()), Deny: r.unpackPrefixes("deny", in.GetDeny())},
		SourcesOf: in.GetSourcesOf(), Outbound: in.GetOutbound(), Tenant: in.GetTenant(), Created: in.GetCreated(),
	}
	if l := limits(in.GetLimits()); l != nil {
		s.Limits = *l
	}
	return s, r.err()
}

// FromPlanSources reads the source list of a policy.
func FromPlanSources(in *apiv1.PlanSources) (plan.Sources, error) {
	r := &reader{}
	s := plan.Sources{
		Policy: in.GetPolicy(), Sources: lb.Sources{Allow: r.unpackPrefixes("allow", in.GetAllow()), Deny: r.unpackPrefixes("deny", in.GetDeny())},
	}
	return s, r.err()
}

func (r *reader) unpackPrefixes(path string, in []byte) []netip.Prefix {
	if len(in) == 0 {
		return nil
	}
	if len(in)%prefixBytes != 0 {
		r.fault(path, fmt.Sprintf("%d bytes", len(in)), fmt.Sprintf("must be %d bytes for each prefix", prefixBytes))
		return nil
	}
	out := make([]netip.Prefix, 0, len(in)/prefixBytes)
	for ; len(in) > 0; in = in[prefixBytes:] {
		p := netip.PrefixFrom(netip.AddrFrom16([16]byte(in)).Unmap(), int(in[prefixBytes-1]))
		if !p.IsValid() || p != p.Masked() {
			r.fault(fmt.Sprintf("%s[%d]", path, len(out)), fmt.Sprintf("%s/%d", p.Addr(), in[prefixBytes-1]), "must be a prefix without bits after its length")
		}
		out = append(out, p)
	}
	return out
}

// FromPlanBinding reads a binding.
func FromPlanBinding(in *apiv1.PlanBinding) (plan.Binding, error) {
	r := &reader{}
	b := plan.Binding{
		Key:     r.key(in.GetVni(), in.GetVip(), in.GetProtocol(), in.GetPort(), in.GetPortEnd()),
		Service: in.GetService(), Member: r.word("member", in.GetMember()), Outer: r.addr("outer", in.GetOuter()),
		DIP: r.addr("dip", in.GetDip()), DIPPort: r.word("dip_port", in.GetDipPort()), Rewrite: in.GetRewrite(),
		Encap: in.GetEncap(), Idle: r.hostIdle("host_idle", in.GetHostIdle()), Share: r.word("share", in.GetShare()),
		Load: r.load("load", in.GetLoad()), Cookie: in.GetCookie(), QUIC: r.quic("quic", in.GetQuic()),
		Tenant: in.GetTenant(), Created: in.GetCreated(),
	}
	if check := in.GetCheck(); check != nil {
		b.Health = r.planCheck(check)
	}
	return b, r.err()
}

func (r *reader) planCheck(in *apiv1.PlanCheck) lb.Health {
	if full := in.GetHealth(); full != nil {
		h := r.health("check.health", full)
		h.SetDefaults()
		return h
	}
	c := lb.Check{
		Kind: in.GetKind(), Path: in.GetPath(), Host: in.GetHost(), Interval: r.duration("check.interval", in.GetInterval()),
		Timeout: r.duration("check.timeout", in.GetTimeout()), Rise: in.GetRise(), Fall: in.GetFall(), Port: r.word("check.port", in.GetPort()),
		Through: in.GetThrough(),
	}
	c.SetDefaults()
	// A cached plan may be of a version without from.
	return lb.Health{Checks: []lb.Check{c}, Combine: lb.CombineAll, From: cmp.Or(in.GetFrom(), lb.FromMux)}
}

func (r *reader) key(vni uint32, vip, protocol string, port, end uint32) lb.EndpointKey {
	k := lb.EndpointKey{
		VNI: r.upTo("vni", vni, 1<<24-1), VIP: r.addr("vip", vip), Protocol: r.protocol(protocol), Port: r.word("port", port),
		PortEnd: r.word("port_end", end),
	}
	if text := lb.PortsText(k.Port, k.PortEnd); len(r.faults) == 0 {
		if _, _, allowed := lb.ParsePorts(text); allowed != "" {
			r.fault("port", text, allowed)
		}
	}
	return k
}

func (r *reader) protocol(in string) lb.Protocol {
	p, allowed := lb.ParseProtocol(in)
	if allowed != "" {
		r.fault("protocol", in, allowed)
	}
	return p
}

func (r *reader) word(path string, in uint32) uint16 { return uint16(r.upTo(path, in, math.MaxUint16)) }

func (r *reader) upTo(path string, in, limit uint32) uint32 {
	if in > limit {
		r.fault(path, fmt.Sprint(in), fmt.Sprintf("must be at most %d", limit))
		return 0
	}
	return in
}

func (r *reader) err() error {
	if len(r.faults) == 0 {
		return nil
	}
	lines := make([]string, len(r.faults))
	for i, f := range r.faults {
		lines[i] = f.String()
	}
	return fmt.Errorf("%s", strings.Join(lines, "; "))
}

// FromAddr reads an address of the API that is not part of an object.
func FromAddr(field, in string) (netip.Addr, []lb.Violation) {
	r := &reader{}
	return r.addr(field, in), r.faults
}
