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

// times is n times as much.
func (u Usage) times(n int) Usage { return Usage{n * u.Services, n * u.Endpoints, n * u.Backends} }

// Add adds what another takes.
func (u *Usage) Add(o Usage) {
	u.Services += o.Services
	u.Endpoints += o.Endpoints
	u.Backends += o.Backends
}
