package lb

import (
	"fmt"
	"net/netip"
	"slices"
)

// snat checks the servers whose connections leave with the VIP. Each needs a host, its own or that
// of a backend of the service.
func (f *faults) snat(s *Service) {
	if len(s.SNAT) == 0 {
		return
	}
	if !slices.ContainsFunc(s.VIPs, netip.Addr.Is4) {
		f.add("snat", "", "needs an IPv4 VIP: IPv6 servers need no translation")
	}
	if len(s.SNAT) > MaxBackends {
		f.add("snat", fmt.Sprintf("%d servers", len(s.SNAT)), fmt.Sprintf("must be at most %d", MaxBackends))
	}
	f.snatEndpoints(s)
	hosts, seen := s.backendHosts(), map[netip.Addr]bool{}
	for i, server := range s.SNAT {
		host, backend := hosts[server.DIP]
		wrong := ""
		switch {
		case !server.DIP.Is4():
			wrong = "must be an IPv4 address: IPv6 servers need no translation"
		case !backend && unicast(server.DIP) != "":
			wrong = unicast(server.DIP)
		case slices.Contains(s.VIPs, server.DIP):
			wrong = "must not be a VIP of the service"
		case server.Host.IsValid() && unicast(server.Host) != "":
			wrong = "its host " + unicast(server.Host)
		case backend && server.Host.IsValid() && server.Host != host:
			wrong = fmt.Sprintf("must have host %s, as the backend with this DIP has", addrText(host))
		case !backend && !server.Host.IsValid():
			wrong = fmt.Sprintf("must be the DIP of a backend of the service, or name its host: {dip: %s, host: ADDRESS}", server.DIP)
		case seen[server.DIP]:
			wrong = allowedOnce
		}
		f.check(fmt.Sprintf("snat[%d]", i), server.String(), wrong)
		seen[server.DIP] = true
	}
}

// snatEndpoints checks the endpoints of a service with snat: some ports are left, and backends with
// one DIP in snat have one host.
func (f *faults) snatEndpoints(s *Service) {
	hosts, servers := map[netip.Addr]netip.Addr{}, s.snatDIPs()
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.PortEnd == AllPorts && e.Port <= 1024 {
			f.add("snat", "", fmt.Sprintf("must not be used beside endpoints[%d], which listens on all ports: none is left", i))
		}
		for j := range e.Backends {
			b := &e.Backends[j]
			for _, dip := range b.DIPs {
				if old, ok := hosts[dip]; ok && old != b.Host && slices.Contains(servers, dip) {
					f.add(fmt.Sprintf("endpoints[%d].backends[%d].host", i, j), addrText(b.Host), fmt.Sprintf("must be %s as elsewhere in the service: %s is in snat", old, dip))
				}
				hosts[dip] = b.Host
			}
		}
	}
}

// snat checks the servers of snat against the Networks, the muxes and other services. Servers that
// are backends are checked as backends.
func (s rules) snat(f *faults, o *Service) {
	networks := s.networks()
	for i, server := range o.SNAT {
		at := fmt.Sprintf("snat[%d]", i)
		if owner := s.snatOwner(server.DIP); owner != o.Name {
			f.add(at, server.String(), "must be in one service, and "+Ref(KindService, owner)+" has it")
		}
		if !server.Host.IsValid() {
			continue
		}
		for _, a := range [2]netip.Addr{server.DIP, server.Host} {
			if mux := s.translators().owners[a]; mux != "" && !f.has(at) {
				f.add(at, server.String(), fmt.Sprintf("%s must not be one of nat.addresses of %s", a, Ref(KindNode, mux)))
			}
			if wrong := networks.underlay(a); wrong != "" && len(networks) > 0 && !f.has(at) {
				f.add(at, server.String(), a.String()+" "+wrong)
			}
		}
		if wrong := networks.tunnel(Outer(server.DIP, server.Host)); wrong != "" && !f.has(at) {
			f.add(at, server.String(), wrong)
		}
	}
}

// MaxSNATPorts is the number of ports of a VIP that may be leased: those from 1024 on.
const MaxSNATPorts = 65536 - 1024

// snatQuotas checks a tenant's limits of ports.
func (f *faults) snatQuotas(q *Quotas) {
	for _, field := range []struct {
		name  string
		value uint32
		most  uint32 // 0: none
		none  string
	}{{"quotas.snatPorts", q.SNATPorts, 0, "no limit"}, {"quotas.snatPortsPerDip", q.SNATPortsPerDIP, MaxSNATPorts, "1024"}} {
		switch {
		case field.value == 0:
		case field.value%8 != 0:
			f.add(field.name, fmt.Sprint(field.value), "must be a multiple of 8, the ports of a range, or 0 for "+field.none)
		case field.most != 0 && field.value > field.most:
			f.add(field.name, fmt.Sprint(field.value), fmt.Sprintf("must be at most %d: a VIP has no more ports to lease", field.most))
		}
	}
}
