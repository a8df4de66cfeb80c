package lb

import (
	"net/netip"
	"strings"
)

// SNATServer is a server whose outbound connections leave with a service's VIP.
type SNATServer struct {
	// DIP is the server's IPv4 address.
	DIP netip.Addr
	// Host is the underlay address of its machine, whose agent leases the ports. Zero: the host of
	// the service's backends with this DIP.
	Host netip.Addr
}

// String returns the text form: the DIP, or DIP@HOST if the host is set.
func (s SNATServer) String() string {
	if !s.Host.IsValid() {
		return addrText(s.DIP)
	}
	return addrText(s.DIP) + "@" + s.Host.String()
}

// ParseSNATServer parses the output of String. allowed is empty or the fault.
func ParseSNATServer(text string) (out SNATServer, allowed string) {
	dip, host, named := strings.Cut(text, "@")
	if out.DIP, allowed = ParseAddr(dip); allowed != "" {
		return SNATServer{}, allowedSNATServer
	}
	if named {
		if out.Host, allowed = ParseAddr(host); allowed != "" {
			return SNATServer{}, allowedSNATServer
		}
	}
	return out, ""
}

const allowedSNATServer = "must be the IPv4 address of a server, or DIP@HOST with the address of its host"

// Outbound reports whether the service has no endpoint: its VIP only serves connections that its
// servers open.
func (s *Service) Outbound() bool { return len(s.Endpoints) == 0 }

// SNATHosts returns the host of each server in SNAT, by DIP: the one that is set, else that of a
// backend. It leaves out DIPs without a host.
func (s *Service) SNATHosts() map[netip.Addr]netip.Addr {
	out := make(map[netip.Addr]netip.Addr, len(s.SNAT))
	if len(s.SNAT) == 0 {
		return out
	}
	backends := s.backendHosts()
	for _, server := range s.SNAT {
		host := server.Host
		if !host.IsValid() {
			host = backends[server.DIP]
		}
		if host.IsValid() {
			out[server.DIP] = host
		}
	}
	return out
}

// backendHosts returns the host of each DIP of the service's backends; if several differ, the last
// one.
func (s *Service) backendHosts() map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for i := range s.Endpoints {
		for j := range s.Endpoints[i].Backends {
			b := &s.Endpoints[i].Backends[j]
			for _, dip := range b.DIPs {
				out[dip] = b.Host
			}
		}
	}
	return out
}

// snatDIPs returns the DIPs of SNAT, in order.
func (s *Service) snatDIPs() []netip.Addr {
	if len(s.SNAT) == 0 {
		return nil
	}
	out := make([]netip.Addr, len(s.SNAT))
	for i, server := range s.SNAT {
		out[i] = server.DIP
	}
	return out
}
