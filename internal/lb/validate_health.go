package lb

import (
	"fmt"
	"time"
)

// Limits of the effects of health.
const (
	// MaxFlips bounds how often a backend may come up before it is damped.
	MaxFlips = 1000
	// MaxFailures bounds how many connections in a row must fail.
	MaxFailures = 1000
	// MinSpan and MaxSpan bound the times of damping and passive checks.
	MinSpan = time.Second
	MaxSpan = 24 * time.Hour

	allowedShare    = "must be 0 to 100"
	allowedMinimum  = "must be 0 to the number of backends"
	allowedCombine  = "must be all, any or {atLeast: NUMBER}"
	allowedFlips    = "must be 1 to 1000"
	allowedFailures = "must be 1 to 1000"
	allowedWithin   = "must be 1s to 24h"
	allowedHold     = "must be 1s to 24h"
)

// health checks the health configuration of an endpoint.
func (f *faults) health(path string, e *Endpoint) {
	h := &e.Health
	switch n := len(h.Checks); {
	case n == 0:
		f.add(path+".checks", "", "must have at least one check")
	case n > MaxChecks:
		f.add(path+".checks", fmt.Sprintf("%d checks", n), fmt.Sprintf("must be at most %d", MaxChecks))
	}
	for i := range h.Checks {
		at := e.checkPath(path, i)
		f.healthCheck(at, &h.Checks[i])
		f.way(at, &h.Checks[i], e)
	}
	f.choice(path+".from", h.From, nil, FromMux, FromHost, FromBoth)
	f.combining(path, h)
	if h.PanicBelow > 100 {
		f.add(path+".panicBelow", fmt.Sprint(h.PanicBelow), allowedShare)
	}
	if int(h.MinimumHealthy) > len(e.Backends) {
		f.add(path+".minimumHealthy", fmt.Sprint(h.MinimumHealthy), fmt.Sprintf("%s, %d", allowedMinimum, len(e.Backends)))
	}
	if d := h.Damping; d != nil {
		f.upTo(path+".damping.flips", d.Flips, MaxFlips, allowedFlips)
		f.span(path+".damping.within", d.Within, allowedWithin)
		f.span(path+".damping.hold", d.Hold, allowedHold)
	}
	if p := h.Passive; p != nil {
		f.upTo(path+".passive.failures", p.Failures, MaxFailures, allowedFailures)
		f.span(path+".passive.within", p.Within, allowedWithin)
		f.span(path+".passive.hold", p.Hold, allowedHold)
		if !h.ByHost() {
			f.add(path+".passive", "", "must be left out with from mux: hosts see the connections of clients, give from host or both")
		}
		if e.Rewrite == RewriteNone {
			f.add(path+".passive", "", "must be left out with rewrite none: hosts do not see what such a server answers")
		}
		if e.Protocol == UDP {
			f.add(path+".passive", "", "must be left out with protocol udp, which has no connections")
		}
	}
}

// checkPath returns the path of check i. A single check has the path of health itself.
func (e *Endpoint) checkPath(health string, i int) string {
	if len(e.Health.Checks) == 1 {
		return health
	}
	return fmt.Sprintf("%s.checks[%d]", health, i)
}

// combining checks the number of checks that must pass.
func (f *faults) combining(path string, h *Health) {
	switch h.Combine {
	case CombineAtLeast:
		if n := len(h.Checks); h.AtLeast < 1 || int(h.AtLeast) > n {
			f.add(path+".combine.atLeast", fmt.Sprint(h.AtLeast), fmt.Sprintf("must be 1 to the number of checks, %d", n))
		}
	case CombineAll, CombineAny:
		if h.AtLeast != 0 {
			f.add(path+".combine.atLeast", fmt.Sprint(h.AtLeast), "must be left out with combine "+h.Combine)
		}
	default:
		f.add(path+".combine", h.Combine, allowedCombine)
	}
}

// upTo checks a number of at least 1.
func (f *faults) upTo(path string, n, most uint16, allowed string) {
	if n < 1 || n > most {
		f.add(path, fmt.Sprint(n), allowed)
	}
}

func (f *faults) span(path string, d time.Duration, allowed string) {
	if d < MinSpan || d > MaxSpan {
		f.add(path, durationText(d), allowed)
	}
}

const onlyPackets = "only the packet engine sends through the tunnel"

// way checks the path of probes and their sender.
func (f *faults) way(path string, c *Check, e *Endpoint) {
	f.choice(path+".through", c.Through, nil, ThroughDirect, ThroughTunnel)
	if c.Engine != "" {
		f.choice(path+".engine", c.Engine, nil, EnginePacket, EngineSocket)
	}
	if c.Engine == EnginePacket && !c.Plain() {
		f.add(path+".engine", c.Engine, "must be socket or left out: the packet engine asks "+whatIsPlain)
	}
	if c.Address.IsValid() {
		f.check(path+".address", addrText(c.Address), unicast(c.Address))
	}
	switch {
	case !c.HasPort():
		if c.Port != 0 {
			f.add(path+".port", fmt.Sprint(c.Port), "must be left out with "+c.Kind+", which has no port")
		}
	case e.PortEnd != 0 && c.Port == 0 && c.Kind != CheckExternal:
		f.add(path+".port", "", "is missing, "+allowedPort+": the backends have all ports")
	}
	if c.Through == ThroughTunnel {
		f.tunnel(path, c, e)
	}
}

// tunnel checks probes to the VIP: they must be valid client packets for every host on their path.
func (f *faults) tunnel(path string, c *Check, e *Endpoint) {
	wrong := func(allowed string) { f.add(path+".through", c.Through, allowed) }
	switch {
	case !c.Plain():
		wrong("must be direct: " + onlyPackets + ", and it asks " + whatIsPlain)
	case e.Health.From == FromHost:
		wrong("must be direct with from host: " + onlyPackets + ", and only that of muxes")
	case c.Engine == EngineSocket:
		wrong("must be direct with engine socket: " + onlyPackets)
	case c.Address.IsValid():
		f.add(path+".address", c.Address.String(), "must be left out with through tunnel, which leads to the VIP")
	case e.Protocol == UDP:
		wrong("must be direct with protocol udp: hosts take no TCP from the tunnel for it")
	case c.Port != 0 && (c.Port < e.Port || c.Port > max(e.Port, e.PortEnd)) && !(e.PortEnd == 0 && e.allAt(c.Port)):
		f.add(path+".port", fmt.Sprint(c.Port), "must be a port of the endpoint, or of all its backends, or left out, with through tunnel: hosts take no other from the tunnel")
	}
}
