package lb

// Shared is what the endpoints of a service share: everything is there.
type Shared struct {
	Limits    Limits
	Sources   *Sources // never nil; not to be modified, many services may have it
	Placement Placement
	// SourcesOf is the name of the Policy that Sources are from; empty when they are the service's own.
	SourcesOf string
}

var noSources Sources

// Effective is what counts for a service: of limits, sources and placement each what it says itself, as a whole, else
// what its Policy says, else the defaults. policies are those there are, by name.
func Effective(s *Service, policies map[string]*Policy) Shared {
	out := Shared{Limits: Limits{Ping: DefaultPing}, Sources: &noSources, Placement: Placement{By: PlaceByVIPs}}
	if s.Policy != "" {
		if p := policies[s.Policy]; p != nil {
			out.take(p.Limits, p.Sources, p.Placement)
			if p.Sources != nil {
				out.SourcesOf = p.Name
			}
		}
	}
	out.take(s.Limits, s.Sources, s.Placement)
	if s.Sources != nil {
		out.SourcesOf = ""
	}
	return out
}

// take replaces what is given.
func (e *Shared) take(l *Limits, s *Sources, p *Placement) {
	if l != nil {
		e.Limits = *l
	}
	if s != nil {
		e.Sources = s
	}
	if p != nil {
		e.Placement = *p
	}
}
