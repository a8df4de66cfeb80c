package lb

import (
	"net/netip"
	"time"
)

// The choices of an endpoint that are built (design section 5).
const (
	PathDSR         = "dsr"
	AffinityHash    = "hash"
	SchedulerMaglev = "maglev"
	CheckTCP        = "tcp"
	CheckHTTP       = "http"
)

// Values of fields that are not given.
const (
	DefaultTenant          = "default"
	DefaultWeight          = 1
	DefaultMTU             = 1500
	DefaultHealthPath      = "/"
	DefaultHealthInterval  = time.Second
	DefaultHealthTimeout   = 500 * time.Millisecond
	DefaultHealthRise      = 2
	DefaultHealthFall      = 3
	DefaultBFDTransmit     = 100 * time.Millisecond
	DefaultBFDReceive      = time.Second
	DefaultBFDMultiplier   = 3
	DefaultTunnelSourcesV4 = "100.64.0.0/16"
	DefaultTunnelSourcesV6 = "fd53:6875:6e74::/64"
)

// SetDefaults fills in what is zero and has a default. Backend.Weight is left alone: 0 is a weight.
func SetDefaults(o Object) {
	switch o := o.(type) {
	case *Service:
		setDefault(&o.Tenant, DefaultTenant)
		for i := range o.Endpoints {
			o.Endpoints[i].setDefaults()
		}
	case *Node:
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
		if len(o.TunnelSources) == 0 {
			o.TunnelSources = defaultTunnelSources()
		}
	}
}

func (e *Endpoint) setDefaults() {
	setDefault(&e.Path, PathDSR)
	setDefault(&e.Affinity, AffinityHash)
	setDefault(&e.Scheduler, SchedulerMaglev)
	setDefault(&e.Rewrite, RewriteHost)
	for i := range e.Backends {
		setDefault(&e.Backends[i].Port, e.Port)
	}
	h := &e.Health
	setDefault(&h.Kind, CheckTCP)
	if h.Kind == CheckHTTP {
		setDefault(&h.Path, DefaultHealthPath)
	}
	if h.Interval == 0 {
		h.Interval = DefaultHealthInterval
	}
	if h.Timeout == 0 {
		h.Timeout = min(DefaultHealthTimeout, h.Interval)
	}
	setDefault(&h.Rise, DefaultHealthRise)
	setDefault(&h.Fall, DefaultHealthFall)
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

func defaultHealth() Health {
	return Health{Kind: CheckTCP, Interval: DefaultHealthInterval, Timeout: DefaultHealthTimeout, Rise: DefaultHealthRise, Fall: DefaultHealthFall}
}

func defaultBFD() BFD {
	return BFD{Transmit: DefaultBFDTransmit, Receive: DefaultBFDReceive, Multiplier: DefaultBFDMultiplier}
}

func defaultTunnelSources() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(DefaultTunnelSourcesV4), netip.MustParsePrefix(DefaultTunnelSourcesV6)}
}
