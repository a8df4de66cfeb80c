package lb

import (
	"fmt"
	"net/netip"
	"slices"
)

// snat checks which DIPs' connections leave with the VIP. Each has to be a backend of the service: its endpoints say which host it is
// on.
func (f *faults) snat(s *Service) {
	if len(s.SNAT) == 0 {
		return
	}
	if !slices.ContainsFunc(s.VIPs, netip.Addr.Is4) {
		f.add("snat", "", "needs an IPv4 VIP: IPv6 servers need no translation")
	}
	hosts := map[netip.Addr]netip.Addr{}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.PortEnd == AllPorts && e.Port <= 1024 {
			f.add("snat", "", fmt.Sprintf("must not be used beside endpoints[%d], which listens on all ports: none is left", i))
		}
		for j := range e.Backends {
			b := &e.Backends[j]
			for _, dip := range b.DIPs {
				if old, ok := hosts[dip]; ok && old != b.Host && slices.Contains(s.SNAT, dip) {
					f.add(fmt.Sprintf("endpoints[%d].backends[%d].host", i, j), addrText(b.Host), fmt.Sprintf("must be %s as elsewhere in the service: %s is in snat", old, dip))
				}
				hosts[dip] = b.Host
			}
		}
	}
	for i, dip := range s.SNAT {
		at := fmt.Sprintf("snat[%d]", i)
		_, backend := hosts[dip]
		switch {
		case !dip.Is4():
			f.add(at, addrText(dip), "must be an IPv4 address: IPv6 servers need no translation")
		case !backend:
			f.add(at, dip.String(), "must be the DIP of a backend of the service")
		}
	}
	unique(f, "snat", s.SNAT)
}

// MaxSNATPorts is how many ports of a VIP may be leased: those from 1024 on.
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
