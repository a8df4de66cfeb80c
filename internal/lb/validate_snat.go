package lb

import (
	"fmt"
	"net/netip"
	"slices"
)

// SNAT says whether services may have DIPs whose outbound connections leave with their VIP, and tenants limits of it. It is the one
// switch: while the data plane does not translate such connections, validation refuses the fields. Benchmarks and tests of the
// manager's side switch it on before anything is validated.
var SNAT = false

// snat checks which DIPs' connections leave with the VIP. Each has to be a backend of the service: its endpoints say which host it is
// on.
func (f *faults) snat(s *Service) {
	if len(s.SNAT) == 0 {
		return
	}
	if !SNAT {
		f.add("snat", "", NotSupported)
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
					f.add(fmt.Sprintf("endpoints[%d].backends[%d].host", i, j), b.Host.String(), fmt.Sprintf("must be %s as elsewhere in the service: %s is in snat", old, dip))
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

// snatQuotas checks a tenant's limits of ports.
func (f *faults) snatQuotas(q *Quotas) {
	for _, field := range []struct {
		name  string
		value uint32
	}{{"quotas.snatPorts", q.SNATPorts}, {"quotas.snatPortsPerDip", q.SNATPortsPerDIP}} {
		switch {
		case field.value == 0:
		case !SNAT:
			f.add(field.name, fmt.Sprint(field.value), NotSupported)
		case field.value%8 != 0:
			f.add(field.name, fmt.Sprint(field.value), "must be a multiple of 8, the ports of a range, or 0 for no limit")
		}
	}
}
