package lb

// Shared holds the settings that the endpoints of a service share. All fields are set.
type Shared struct {
	Limits    Limits
	Sources   *Sources // never nil; must not be modified, because services may share it
	Placement Placement
	// SourcesOf is the name of the Policy that has the Sources; empty when they are the service's
	// own.
	SourcesOf string
}

var noSources Sources

// Effective returns the settings of a service. Limits, sources and placement each come as a whole
// from the service, else from its Policy, else from the defaults. policies are all policies, by
// name.
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

// take replaces the settings that are given.
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
