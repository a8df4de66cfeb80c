package lb

import (
	"fmt"
	"net/netip"
)

// use is the purpose of an address in a service.
type use uint8

const (
	useVIP use = iota
	useDIP
	useHost
	useCheck
	useSNAT
	useSNATHost
)

// named is an address in a service. Equal values in two versions of a service are the same field.
type named struct {
	use  use
	addr netip.Addr
	// protocol, port, portEnd and path are the endpoint's, backend is the backend's port; zero for
	// VIPs and SNAT.
	protocol               Protocol
	port, portEnd, backend uint16
	path                   string
}

// spot is the position of a named address in a service.
type spot struct{ endpoint, backend, item int }

// field returns the path of a named address.
func (n named) field(s *Service, at spot) string {
	switch n.use {
	case useVIP:
		return fmt.Sprintf("vip[%d]", at.item)
	case useSNAT, useSNATHost:
		return fmt.Sprintf("snat[%d]", at.item)
	case useCheck:
		return s.Endpoints[at.endpoint].checkPath(fmt.Sprintf("endpoints[%d].health", at.endpoint), at.item) + ".address"
	case useHost:
		return fmt.Sprintf("endpoints[%d].backends[%d].host", at.endpoint, at.backend)
	}
	return fmt.Sprintf("endpoints[%d].backends[%d].dip[%d]", at.endpoint, at.backend, at.item)
}

// eachNamed calls f for every address in the service, until f returns false.
func (s *Service) eachNamed(f func(n named, at spot) bool) {
	for i, vip := range s.VIPs {
		if !f(named{use: useVIP, addr: vip}, spot{item: i}) {
			return
		}
	}
	for i, server := range s.SNAT {
		if !f(named{use: useSNAT, addr: server.DIP}, spot{item: i}) || server.Host.IsValid() && !f(named{use: useSNATHost, addr: server.Host}, spot{item: i}) {
			return
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		n := named{protocol: e.Protocol, port: e.Port, portEnd: e.PortEnd, path: e.Path}
		for j := range e.Health.Checks {
			c := &e.Health.Checks[j]
			if n.use, n.addr, n.backend = useCheck, c.Address, c.Port; n.addr.IsValid() && !f(n, spot{endpoint: i, item: j}) {
				return
			}
		}
		for j := range e.Backends {
			b := &e.Backends[j]
			n.backend = b.Port
			if n.use, n.addr = useHost, b.Host; n.addr.IsValid() && !f(n, spot{endpoint: i, backend: j}) {
				return
			}
			n.use = useDIP
			for k, dip := range b.DIPs {
				if n.addr = dip; !f(n, spot{i, j, k}) {
					return
				}
			}
		}
	}
}

// names returns the set of addresses in the service.
func (s *Service) names() map[named]bool {
	out := map[named]bool{}
	s.eachNamed(func(n named, _ spot) bool {
		out[n] = true
		return true
	})
	return out
}
