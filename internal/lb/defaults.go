package lb

import (
	"net/netip"
	"slices"
	"time"
)

// The choices of an endpoint (design section 5).
const (
	PathDSR         = "dsr"
	PathNAT         = "nat"
	AffinityHash    = "hash"
	AffinityFlow    = "flow"
	AffinityCookie  = "cookie"
	FragmentsDrop   = "drop"
	Fragments3Tuple = "3tuple"
	EncapIPIP       = "ipip"
	EncapGUE        = "gue"
	PlaceByVIPs     = "vips"
	PlaceByLoad     = "load"
)

// Defaults of fields.
const (
	DefaultTenant          = "default"
	DefaultPing            = 1000
	DefaultBackupBelow     = 50
	DefaultPrefix4         = 32
	DefaultPrefix6         = 128
	DefaultSourceFor       = 10 * time.Minute
	DefaultRepairWindow    = time.Hour
	DefaultIdleUntrusted   = 60 * time.Second
	DefaultIdleTrusted     = 2*time.Hour + 4*time.Minute // RFC 5382 section 5
	DefaultUDPUntrusted    = 30 * time.Second
	DefaultUDPTrusted      = 2 * time.Minute // RFC 4787 section 4.3
	DefaultWeight          = 1
	DefaultTenantWeight    = 1
	DefaultMTU             = 1500
	DefaultBFDTransmit     = 100 * time.Millisecond
	DefaultBFDReceive      = time.Second
	DefaultBFDMultiplier   = 3
	DefaultTunnelSourcesV4 = "100.64.0.0/16"
	DefaultTunnelSourcesV6 = "fd53:6875:6e74::/64"
)

// SetDefaults sets the defaults of zero fields, except Backend.Weight, for which 0 is a value.
func SetDefaults(o Object) {
	switch o := o.(type) {
	case *Service:
		setDefault(&o.Tenant, DefaultTenant)
		setShared(o.Limits, o.Placement)
		for i := range o.Endpoints {
			o.Endpoints[i].setDefaults()
		}
	case *Node:
		if o.NAT != nil {
			o.NAT.setDefaults()
		}
		if o.BGP == nil {
			return
		}
		for _, peer := range o.BGP.Peers {
			if peer.BFD != nil {
				peer.BFD.setDefaults()
			}
		}
	case *Network:
		setDefault(&o.MTU, DefaultMTU)
		setDefault(&o.Encap, EncapIPIP)
		if len(o.TunnelSources) == 0 {
			o.TunnelSources = defaultTunnelSources()
		}
	case *Tenant:
		setDefault(&o.Weight, DefaultTenantWeight)
	case *Policy:
		setShared(o.Limits, o.Placement)
	}
}

// setShared sets the defaults of the fields that services and policies have in common; nil stays
// nil.
func setShared(l *Limits, p *Placement) {
	if l != nil {
		setDefault(&l.Ping, DefaultPing)
	}
	if p != nil {
		setDefault(&p.By, PlaceByVIPs)
	}
}

func (e *Endpoint) setDefaults() {
	setDefault(&e.Path, PathDSR)
	setDefault(&e.Scheduler, SchedulerMaglev)
	setDefault(&e.Rewrite, RewriteHost)
	setDefault(&e.Fragments, FragmentsDrop)
	setDefault(&e.BackupBelow, DefaultBackupBelow)
	e.setDerived()
	e.Health.setDefaults()
	e.setWays()
}

// setWays sets the default path of checks. It needs the other fields of the endpoint and of the
// checks.
func (e *Endpoint) setWays() {
	for i := range e.Health.Checks {
		way := ThroughDirect
		if c := &e.Health.Checks[i]; e.canTunnel(c) {
			way = ThroughTunnel
		}
		setDefault(&e.Health.Checks[i].Through, way)
	}
}

// canTunnel reports whether a check can take the path of client packets, and reaches the same port
// of the backend there as it does directly.
func (e *Endpoint) canTunnel(c *Check) bool {
	switch {
	case e.Translated(), e.Protocol == UDP, e.Health.From == FromHost, !c.Plain(), c.Engine == EngineSocket, c.Address.IsValid():
		return false
	case e.PortEnd != 0:
		return c.Port != 0 && c.Port >= e.Port && c.Port <= e.PortEnd
	}
	return c.Port == 0 || e.allAt(c.Port)
}

// allAt reports whether all backends have the port, or there are none.
func (e *Endpoint) allAt(port uint16) bool {
	return !slices.ContainsFunc(e.Backends, func(b Backend) bool { return b.Port != port })
}

// setDerived sets the defaults that depend on other fields.
func (e *Endpoint) setDerived() {
	if e.QUIC != nil {
		e.QUIC.setDefaults(e.Affinity)
	}
	if e.QUIC != nil && e.QUIC.Format != QUICNone {
		setDefault(&e.Affinity, AffinityCookie)
	}
	setDefault(&e.Affinity, AffinityFlow)
	if e.StampsTCP() && e.Translated() {
		setDefault(&e.Cookie.Form, CookieSplitR)
	}
	if e.StampsTCP() {
		setDefault(&e.Cookie.Form, CookieEVC)
	}
	if e.Loaded() {
		setDefault(&e.Schedule.By, ByConnections)
	}
	if e.Protocol == AnyProtocol && e.Port == 0 {
		setDefault(&e.PortEnd, AllPorts)
	}
	if e.PortEnd == 0 {
		for i := range e.Backends {
			setDefault(&e.Backends[i].Port, e.Port)
		}
	} else {
		for i := range e.Health.Checks {
			if c := &e.Health.Checks[i]; c.HasPort() {
				setDefault(&c.Port, e.Port)
			}
		}
	}
	if e.Protocol == TCP && e.RepairWindow == nil && !e.Translated() {
		e.RepairWindow = new(DefaultRepairWindow)
	}
	if e.KeepsFlows() {
		untrusted, trusted := DefaultIdleUntrusted, DefaultIdleTrusted
		if e.Protocol == UDP {
			untrusted, trusted = DefaultUDPUntrusted, DefaultUDPTrusted
		}
		setDefault(&e.Idle.Untrusted, untrusted)
		setDefault(&e.Idle.Trusted, max(trusted, e.Idle.Untrusted))
	}
	if s := e.Source; s != nil {
		setDefault(&s.Prefix4, DefaultPrefix4)
		setDefault(&s.Prefix6, DefaultPrefix6)
		if e.KeepsFlows() {
			setDefault(&s.For, DefaultSourceFor)
		}
	}
}

// OpeningIdle is the maximum time that muxes keep the scheduler's choice for a SYN to a TCP
// endpoint with cookies while no other packet of the flow arrived (Idle.Untrusted if that is less):
// the time in which repeated SYNs must reach the same backend. Later packets carry a cookie, and a
// SYN flood does not fill the flow table for longer.
const OpeningIdle = 10 * time.Second

// KeepsFlows reports whether muxes track the endpoint's flows; with affinity cookie only flows
// without a cookie.
func (e *Endpoint) KeepsFlows() bool {
	return (e.Affinity == AffinityFlow || e.Affinity == AffinityCookie) && !e.OnePacket
}

func (b *BFD) setDefaults() {
	d := defaultBFD()
	setDefault(&b.Transmit, d.Transmit)
	setDefault(&b.Receive, d.Receive)
	setDefault(&b.Multiplier, d.Multiplier)
}

func setDefault[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

func defaultBFD() BFD {
	return BFD{Transmit: DefaultBFDTransmit, Receive: DefaultBFDReceive, Multiplier: DefaultBFDMultiplier}
}

func defaultTunnelSources() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(DefaultTunnelSourcesV4), netip.MustParsePrefix(DefaultTunnelSourcesV6)}
}
