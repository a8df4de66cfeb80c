package lb

// Usage is what of a tenant's quotas is taken.
type Usage struct {
	Services  int
	Endpoints int // each counted once for every VIP
	Backends  int
}

// Usage is what the service takes of its tenant's quotas.
func (s *Service) Usage() Usage {
	u := Usage{Services: 1, Endpoints: len(s.Endpoints) * len(s.VIPs)}
	for i := range s.Endpoints {
		u.Backends += len(s.Endpoints[i].Backends)
	}
	return u
}

// Add adds what another takes.
func (u *Usage) Add(o Usage) {
	u.Services += o.Services
	u.Endpoints += o.Endpoints
	u.Backends += o.Backends
}
