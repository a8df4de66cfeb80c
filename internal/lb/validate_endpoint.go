package lb

import (
	"fmt"
	"time"
)

// Limits of an endpoint's flow state and timers.
const (
	// MinIdle and MaxIdle bound idle times: ticks of about a second in 16 bits.
	MinIdle = time.Second
	MaxIdle = 12 * time.Hour
	// MaxSlowStart bounds the slow start of a backend.
	MaxSlowStart = time.Hour
	// MaxDrainTimeout bounds how long a draining backend keeps its flows.
	MaxDrainTimeout = 7 * 24 * time.Hour
	// MaxRepairWindow bounds how long previous backends stay targets of repair; their ids are not
	// reused for that time.
	MaxRepairWindow = 24 * time.Hour

	allowedIdle    = "must be 1s to 12h"
	allowedPercent = "must be 1 to 100"
	allowedPrefix4 = "must be 1 to 32"
	allowedPrefix6 = "must be 1 to 128"
)

var encaps = []string{EncapIPIP, EncapGUE}

// name returns the endpoint in messages: "tcp port 80".
func (e *Endpoint) name() string {
	return fmt.Sprintf("%s port %s", e.ProtocolName(), PortsText(e.Port, e.PortEnd))
}

// wrongPorts returns the fault of the endpoint's ports.
func (e *Endpoint) wrongPorts() string {
	all := e.Port == 0 && e.PortEnd == AllPorts
	switch {
	case e.Protocol == AnyProtocol && !all:
		return `must be "*" or left out with protocol any`
	case all, e.Port != 0 && e.PortEnd == 0, e.Port != 0 && e.Port < e.PortEnd:
		return ""
	}
	return allowedPorts
}

// remembering checks the options that keep flows at their backends.
func (f *faults) remembering(path string, e *Endpoint) {
	if e.OnePacket {
		switch {
		case e.Protocol != UDP:
			f.add(path+".onePacket", "true", "must be false with protocol "+e.ProtocolName()+": only udp has single packets")
		case e.Source != nil:
			f.add(path+".source", "", "must be left out with onePacket, which sends every packet elsewhere")
		case e.Fragments == Fragments3Tuple:
			f.add(path+".fragments", e.Fragments, "must be drop with onePacket, which sends every packet elsewhere")
		}
	}
	if e.KeepsFlows() {
		f.idleTime(path+".idle.untrusted", e.Idle.Untrusted)
		f.idleTime(path+".idle.trusted", e.Idle.Trusted)
		if e.Idle.Trusted < e.Idle.Untrusted && !f.hasUnder(path+".idle.trusted") {
			f.add(path+".idle.trusted", durationText(e.Idle.Trusted), "must be at least untrusted, "+durationText(e.Idle.Untrusted))
		}
	} else if e.Idle != (Idle{}) {
		f.add(path+".idle", "", "must be left out: no flow is remembered with affinity hash or onePacket")
	}
	s := e.Source
	if s == nil {
		return
	}
	if s.Prefix4 < 1 || s.Prefix4 > 32 {
		f.add(path+".source.prefix4", fmt.Sprint(s.Prefix4), allowedPrefix4)
	}
	if s.Prefix6 < 1 || s.Prefix6 > 128 {
		f.add(path+".source.prefix6", fmt.Sprint(s.Prefix6), allowedPrefix6)
	}
	if e.KeepsFlows() {
		f.idleTime(path+".source.for", s.For)
	} else if s.For != 0 {
		f.add(path+".source.for", durationText(s.For), "must be left out with affinity hash, which remembers nothing")
	}
}

func (f *faults) idleTime(path string, d time.Duration) {
	if d < MinIdle || d > MaxIdle {
		f.add(path, durationText(d), allowedIdle)
	}
}

// timing checks the timers of weights and repair.
func (f *faults) timing(path string, e *Endpoint) {
	if e.SlowStart < 0 || e.SlowStart > MaxSlowStart {
		f.add(path+".slowStart", durationText(e.SlowStart), "must be 0s to 1h")
	}
	if e.DrainTimeout < 0 || e.DrainTimeout > MaxDrainTimeout {
		f.add(path+".drainTimeout", durationText(e.DrainTimeout), "must be 0s to 168h")
	}
	switch w := e.RepairWindow; {
	case w == nil:
	case e.Protocol == UDP || e.Protocol == AnyProtocol:
		f.add(path+".repairWindow", durationText(*w), "must be left out: only tcp connections are repaired")
	case *w < 0 || *w > MaxRepairWindow:
		f.add(path+".repairWindow", durationText(*w), "must be 0s to 24h")
	}
}

// portClaims holds the ports of a service's endpoints. An exact port inside a range, a range inside
// all ports, and any ports inside protocol any are valid, because the narrower endpoint takes the
// packet.
type portClaims struct {
	// exact holds single ports and all ports.
	exact map[EndpointKey]int
	// owner has the range that contains a port, plus 1; allocated for the first range.
	owner map[Protocol]*[1 << 16]int32
}

func newPortClaims() *portClaims {
	return &portClaims{exact: map[EndpointKey]int{}, owner: map[Protocol]*[1 << 16]int32{}}
}

// claim takes the ports of endpoint number i, or returns a fault that names their owner.
func (c *portClaims) claim(e *Endpoint, i int) (wrong string) {
	if e.wrongPorts() != "" {
		return ""
	}
	if e.PortEnd == 0 || e.Port == 0 {
		key := EndpointKey{Protocol: e.Protocol, Port: e.Port, PortEnd: e.PortEnd}
		if first, twice := c.exact[key]; twice {
			return fmt.Sprintf("must differ from endpoints[%d] in protocol or port", first)
		}
		c.exact[key] = i
		return ""
	}
	ports := c.owner[e.Protocol]
	if ports == nil {
		ports = new([1 << 16]int32)
		c.owner[e.Protocol] = ports
	}
	for p := int(e.Port); p <= int(e.PortEnd); p++ {
		if first := ports[p]; first != 0 {
			return fmt.Sprintf("must not overlap the range of endpoints[%d]: both hold port %d", first-1, p)
		}
	}
	for p := int(e.Port); p <= int(e.PortEnd); p++ {
		ports[p] = int32(i + 1)
	}
	return ""
}
