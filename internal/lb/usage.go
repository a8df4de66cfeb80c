package lb

import (
	"net/netip"
	"time"
)

// Usage is the use of a tenant's quotas and of the tables of muxes by its services.
type Usage struct {
	Services  int
	Endpoints int // each counted once for every VIP
	// Backends counts those of endpoints, and SNAT servers with a host.
	Backends int
	// Probes is an upper bound of the health probes that one mux sends in a second, in millionths
	// of a probe. Equal checks of an address in several endpoints are sent once, but counted each.
	Probes int64
	// Everywhere is the use of each mux's tables by the services without a Placement.
	Everywhere Tables
}

// Tables counts entries of services in the tables of every mux.
type Tables struct {
	Endpoints int // VIPs included
	QUIC      int // endpoints whose connection ids muxes read
	Members   int
}

// DefaultQuotas limits the changes of clients with role tenant whose Tenant leaves a quota at 0, or
// that have no Tenant. One tenant uses at most a sixteenth of the default --max-endpoints.
var DefaultQuotas = Quotas{Services: 1024, Endpoints: 4096, Backends: 16384, Changes: 600}

// probeUnit is one probe a second in Usage.Probes.
const probeUnit = 1_000_000

// Usage returns the usage of the service.
func (s *Service) Usage() Usage {
	u := Usage{Services: 1, Endpoints: len(s.Endpoints) * len(s.VIPs)}
	t := Tables{Endpoints: u.Endpoints + len(s.VIPs)}
	for _, server := range s.SNAT {
		if server.Host.IsValid() {
			u.Backends++
			t.Members++
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		u.Backends += len(e.Backends)
		u.Probes += e.probes(s.VIPs)
		t.Members += len(e.Backends) * len(s.VIPs)
		if e.QUIC != nil {
			t.QUIC += len(s.VIPs)
		}
	}
	if s.Placement == nil && s.Policy == "" {
		u.Everywhere = t
	}
	return u
}

// Times returns n times the usage.
func (u Usage) Times(n int) Usage {
	t := u.Everywhere
	return Usage{n * u.Services, n * u.Endpoints, n * u.Backends, int64(n) * u.Probes, Tables{n * t.Endpoints, n * t.QUIC, n * t.Members}}
}

// probes returns the Usage.Probes of an endpoint's checks. Checks through the tunnel are made for
// each VIP.
func (e *Endpoint) probes(vips []netip.Addr) (out int64) {
	var dips [2]int64
	for i := range e.Backends {
		for _, dip := range e.Backends[i].DIPs {
			dips[familyOf(dip)]++
		}
	}
	for i := range e.Health.Checks {
		c := &e.Health.Checks[i]
		interval := c.Interval
		if c.Fast > 0 {
			interval = min(interval, c.Fast)
		}
		asked := dips[0] + dips[1]
		if c.Through == ThroughTunnel {
			asked = 0
			for _, vip := range vips {
				asked += dips[familyOf(vip)]
			}
		}
		if interval > 0 {
			out += asked * int64(probeUnit*time.Second/interval)
		}
	}
	return out
}

// Add adds another usage.
func (u *Usage) Add(o Usage) {
	u.Services += o.Services
	u.Endpoints += o.Endpoints
	u.Backends += o.Backends
	u.Probes += o.Probes
	u.Everywhere.Endpoints += o.Everywhere.Endpoints
	u.Everywhere.QUIC += o.Everywhere.QUIC
	u.Everywhere.Members += o.Everywhere.Members
}

// Used returns the usage of a tenant's services.
func (s *State) Used(tenant string) Usage { return s.used[tenant] }

// UsedByAll returns the usage of all tenants' services. Its cost is linear in the number of
// tenants.
func (s *State) UsedByAll() (all Usage) {
	for _, u := range s.used {
		all.Add(u)
	}
	return all
}
