package plan

import "github.com/shuntlb/shunt/internal/lb"

// Verdicts are what hosts came to about the members that they check.
type Verdicts struct {
	// Full: whatever is not in it is unknown.
	Full      bool
	Endpoints []EndpointVerdicts
}

// EndpointVerdicts are those on members of one endpoint, by id; a member is in one of the lists at most.
type EndpointVerdicts struct {
	Key                  lb.EndpointKey
	Alive, Dead, Unknown []uint16
	// Words tell why, of some of the alive and the dead; nil: of none.
	Words map[uint16]string
}
