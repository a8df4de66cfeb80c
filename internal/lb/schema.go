package lb

import "github.com/goccy/go-yaml/ast"

// The functions of this file are the YAML schema: each lists the fields of one mapping. Defaults
// are set before the fields are read, so that an explicit zero is kept.

const allowedWeight = "must be 0 to 1000"

// object reads a whole document; nil when its kind is unknown.
func (d *decoder) object(n ast.Node) (Object, string) {
	kind, name := d.identity(n)
	ref := Ref(kind, name)
	switch kind {
	case KindService:
		return d.service(n), ref
	case KindNode:
		return d.node(n), ref
	case KindNetwork:
		return d.network(n), ref
	case KindTenant:
		return d.tenant(n), ref
	case KindPolicy:
		return d.policy(n), ref
	}
	return nil, ""
}

// identity finds kind and name before other fields are read, so that every message can name the
// object.
func (d *decoder) identity(n ast.Node) (kind Kind, name string) {
	allowed := AllowedKind
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.note("document", n)
		d.add("document", show(n), "must be a mapping with a kind")
		return "", ""
	}
	d.note("", m)
	var at ast.Node
	for _, entry := range m.Values {
		switch show(entry.Key) {
		case "kind":
			at = entry.Value
		case "name":
			if s, ok := entry.Value.(*ast.StringNode); ok {
				name = s.Value
			}
		}
	}
	if at == nil {
		d.places["kind"] = d.places[""]
		d.add("kind", "", "is missing, "+allowed)
		return "", name
	}
	d.note("kind", at)
	s, _ := at.(*ast.StringNode)
	switch {
	case s == nil:
		d.add("kind", show(at), allowed)
	case plurals[Kind(s.Value)] == "":
		d.add("kind", s.Value, allowed+MeantFor(s.Value, KindNames()))
	default:
		return Kind(s.Value), name
	}
	return "", name
}

func (d *decoder) ignore(string, ast.Node) {}

func (d *decoder) service(n ast.Node) *Service {
	s := &Service{Tenant: DefaultTenant}
	d.mapping("", n,
		field{"kind", d.ignore},
		field{"name", func(p string, n ast.Node) { s.Name = d.text(p, n) }},
		field{"tenant", func(p string, n ast.Node) { s.Tenant = d.text(p, n) }},
		field{"vip", func(p string, n ast.Node) {
			d.listOrOne(p, n, func(p string, n ast.Node) { s.VIPs = append(s.VIPs, d.addr(p, n)) })
		}},
		field{"endpoints", func(p string, n ast.Node) {
			d.list(p, n, func(p string, n ast.Node) { s.Endpoints = append(s.Endpoints, d.endpoint(p, n)) })
		}},
		field{"limits", func(p string, n ast.Node) { s.Limits = d.limits(p, n) }},
		field{"sources", func(p string, n ast.Node) { s.Sources = d.sources(p, n) }},
		field{"policy", func(p string, n ast.Node) { s.Policy = d.given(p, n, "must be the name of a Policy") }},
		field{"placement", func(p string, n ast.Node) { s.Placement = d.placement(p, n) }},
		field{"snat", d.snat(s)},
	)
	return s
}

func (d *decoder) endpoint(path string, n ast.Node) Endpoint {
	e := Endpoint{
		Path: PathDSR, Scheduler: SchedulerMaglev, Rewrite: RewriteHost, Fragments: FragmentsDrop,
		BackupBelow: DefaultBackupBelow, Health: defaultHealth(),
	}
	var quic bool
	seen := d.mapping(path, n,
		field{"protocol", func(p string, n ast.Node) {
			t := parsed(d, p, n, ParseTransport)
			e.Protocol, quic = t.Protocol, t.QUIC
		}},
		field{"port", func(p string, n ast.Node) { e.Port, e.PortEnd = d.ports(p, n) }},
		field{"path", func(p string, n ast.Node) { e.Path = d.text(p, n) }},
		field{"affinity", func(p string, n ast.Node) { e.Affinity = d.given(p, n, allowedAffinity) }},
		field{"cookie", func(p string, n ast.Node) { e.Cookie = d.cookie(p, n) }},
		field{"quic", func(p string, n ast.Node) { e.QUIC = d.quic(p, n) }},
		field{"track", func(p string, n ast.Node) { e.Track = d.boolean(p, n) }},
		field{"unhealthy", func(p string, n ast.Node) { e.Unhealthy = d.given(p, n, anyOf(UnhealthyKeep, UnhealthyMove)) }},
		field{"scheduler", func(p string, n ast.Node) { e.Scheduler = d.text(p, n) }},
		field{"schedule", func(p string, n ast.Node) { e.Schedule = d.schedule(p, n) }},
		field{"rewrite", func(p string, n ast.Node) { e.Rewrite = Rewrite(d.text(p, n)) }},
		field{"backends", func(p string, n ast.Node) {
			d.list(p, n, func(p string, n ast.Node) { e.Backends = append(e.Backends, d.backend(p, n)) })
		}},
		field{"health", func(p string, n ast.Node) { d.health(p, n, &e.Health) }},
		field{"source", func(p string, n ast.Node) { e.Source = d.source(p, n) }},
		field{"onePacket", func(p string, n ast.Node) { e.OnePacket = d.boolean(p, n) }},
		field{"idle", func(p string, n ast.Node) { d.idle(p, n, &e.Idle) }},
		field{"fragments", func(p string, n ast.Node) { e.Fragments = d.text(p, n) }},
		field{"encap", func(p string, n ast.Node) { e.Encap = d.given(p, n, anyOf(encaps...)) }},
		field{"backupBelow", func(p string, n ast.Node) { e.BackupBelow = uint8(d.number(p, n, 8, allowedPercent)) }},
		field{"failOpen", func(p string, n ast.Node) { e.FailOpen = d.boolean(p, n) }},
		field{"slowStart", func(p string, n ast.Node) { e.SlowStart = d.duration(p, n) }},
		field{"drainTimeout", func(p string, n ast.Node) { e.DrainTimeout = d.duration(p, n) }},
		field{"repairWindow", func(p string, n ast.Node) { e.RepairWindow = new(d.duration(p, n)) }},
		field{"hostIdle", func(p string, n ast.Node) { d.hostIdle(p, n, &e.HostIdle) }},
		field{"load", func(p string, n ast.Node) { d.load(p, n, &e.Load) }},
	)
	if quic && e.QUIC == nil {
		e.QUIC = &QUIC{}
	}
	if !quic && seen["quic"] {
		d.add(path+".quic", "", "must be left out: the protocol is not quic")
		e.QUIC = nil
	}
	e.setDerived()
	e.setWays()
	return e
}

func (d *decoder) source(path string, n ast.Node) *SourceAffinity {
	s := &SourceAffinity{}
	d.mapping(path, n,
		field{"prefix4", func(p string, n ast.Node) { s.Prefix4 = d.positive(p, n, allowedPrefix4) }},
		field{"prefix6", func(p string, n ast.Node) { s.Prefix6 = d.positive(p, n, allowedPrefix6) }},
		field{"for", func(p string, n ast.Node) { s.For = d.idleTime(p, n) }},
	)
	return s
}

func (d *decoder) idle(path string, n ast.Node, i *Idle) {
	d.mapping(path, n,
		field{"untrusted", func(p string, n ast.Node) { i.Untrusted = d.idleTime(p, n) }},
		field{"trusted", func(p string, n ast.Node) { i.Trusted = d.idleTime(p, n) }},
	)
}

func (d *decoder) hostIdle(path string, n ast.Node, h *HostIdle) {
	var fields []field
	for _, c := range h.classes() {
		fields = append(fields, field{c.name, func(p string, n ast.Node) { *c.time = d.span(p, n, allowedHostIdle) }})
	}
	d.mapping(path, n, fields...)
}

func (d *decoder) load(path string, n ast.Node, l *Load) {
	fields := []field{{"http", func(p string, n ast.Node) { d.loadHTTP(p, n, &l.HTTP) }}}
	for _, t := range l.times() {
		fields = append(fields, field{t.name, func(p string, n ast.Node) { *t.time = d.span(p, n, t.allowed) }})
	}
	d.mapping(path, n, fields...)
}

func (d *decoder) loadHTTP(path string, n ast.Node, h *LoadHTTP) {
	h.Path = DefaultLoadPath
	d.mapping(path, n,
		field{"path", func(p string, n ast.Node) { h.Path = d.given(p, n, allowedPath) }},
		field{"host", func(p string, n ast.Node) { h.Host = d.given(p, n, allowedHost) }},
		field{"port", func(p string, n ast.Node) { h.Port = d.port(p, n) }},
	)
}

func (d *decoder) backend(path string, n ast.Node) Backend {
	b := Backend{Weight: DefaultWeight}
	d.mapping(path, n,
		field{"dip", func(p string, n ast.Node) {
			d.listOrOne(p, n, func(p string, n ast.Node) { b.DIPs = append(b.DIPs, d.addr(p, n)) })
		}},
		field{"port", func(p string, n ast.Node) { b.Port = d.port(p, n) }},
		field{"host", func(p string, n ast.Node) { b.Host = d.addr(p, n) }},
		field{"weight", func(p string, n ast.Node) { b.Weight = uint16(d.number(p, n, 16, allowedWeight)) }},
		field{"drain", func(p string, n ast.Node) { b.Drain = d.boolean(p, n) }},
		field{"backup", func(p string, n ast.Node) { b.Backup = d.boolean(p, n) }},
	)
	return b
}

func (d *decoder) node(n ast.Node) *Node {
	o := &Node{}
	d.mapping("", n,
		field{"kind", d.ignore},
		field{"name", func(p string, n ast.Node) { o.Name = d.text(p, n) }},
		field{"role", func(p string, n ast.Node) { o.Role = Role(d.text(p, n)) }},
		field{"zone", func(p string, n ast.Node) { o.Zone = d.text(p, n) }},
		field{"address", func(p string, n ast.Node) {
			d.listOrOne(p, n, func(p string, n ast.Node) { o.Addresses = append(o.Addresses, d.addr(p, n)) })
		}},
		field{"drain", func(p string, n ast.Node) { o.Drain = d.boolean(p, n) }},
		field{"bgp", func(p string, n ast.Node) { o.BGP = d.bgp(p, n) }},
		field{"capacity", func(p string, n ast.Node) { d.capacity(p, n, &o.Capacity) }},
		field{"nat", func(p string, n ast.Node) { o.NAT = d.nat(p, n) }},
	)
	return o
}

func (d *decoder) bgp(path string, n ast.Node) *BGP {
	b := &BGP{}
	d.mapping(path, n,
		field{"asn", func(p string, n ast.Node) { b.ASN = uint32(d.number(p, n, 32, allowedASN)) }},
		field{"routerId", func(p string, n ast.Node) { b.RouterID = d.addr(p, n) }},
		field{"peers", func(p string, n ast.Node) {
			d.list(p, n, func(p string, n ast.Node) { b.Peers = append(b.Peers, d.peer(p, n)) })
		}},
	)
	return b
}

func (d *decoder) peer(path string, n ast.Node) BGPPeer {
	var b BGPPeer
	d.mapping(path, n,
		field{"address", func(p string, n ast.Node) { b.Address = d.addr(p, n) }},
		field{"asn", func(p string, n ast.Node) { b.ASN = uint32(d.number(p, n, 32, allowedASN)) }},
		field{"passwordFile", func(p string, n ast.Node) { b.PasswordFile = d.text(p, n) }},
		field{"bfd", func(p string, n ast.Node) { b.BFD = d.bfd(p, n) }},
		field{"ttlSecurity", func(p string, n ast.Node) { b.TTLSecurity = uint32(d.number(p, n, 32, allowedTTLSecurity)) }},
		field{"multihop", func(p string, n ast.Node) { b.Multihop = uint32(d.number(p, n, 32, allowedMultihop)) }},
	)
	return b
}

func (d *decoder) bfd(path string, n ast.Node) *BFD {
	b := defaultBFD()
	d.mapping(path, n,
		field{"transmit", func(p string, n ast.Node) { b.Transmit = d.duration(p, n) }},
		field{"receive", func(p string, n ast.Node) { b.Receive = d.duration(p, n) }},
		field{"multiplier", func(p string, n ast.Node) { b.Multiplier = uint32(d.number(p, n, 32, allowedMultiplier)) }},
	)
	return &b
}

func (d *decoder) network(n ast.Node) *Network {
	o := &Network{MTU: DefaultMTU, Encap: EncapIPIP, TunnelSources: defaultTunnelSources()}
	d.mapping("", n,
		field{"kind", d.ignore},
		field{"name", func(p string, n ast.Node) { o.Name = d.text(p, n) }},
		field{"vips", d.prefixes(&o.VIPs)},
		field{"underlay", d.prefixes(&o.Underlay)},
		field{"mtu", func(p string, n ast.Node) { o.MTU = uint32(d.number(p, n, 32, allowedMTU)) }},
		field{"tunnelSources", d.prefixes(&o.TunnelSources)},
		field{"encap", func(p string, n ast.Node) { o.Encap = d.text(p, n) }},
		field{"switches", d.prefixes(&o.Switches)},
		field{"snat", func(p string, n ast.Node) { d.snatTimes(p, n, &o.SNAT) }},
	)
	return o
}
