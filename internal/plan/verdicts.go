package plan

import "github.com/shuntlb/shunt/internal/lb"

// Verdicts holds the check results of hosts for their members.
type Verdicts struct {
	// Full: members that are not in it are unknown.
	Full      bool
	Endpoints []EndpointVerdicts
}

// EndpointVerdicts holds the results for members of one endpoint, by id; a member is in at most one
// of the lists.
type EndpointVerdicts struct {
	Key                  lb.EndpointKey
	Alive, Dead, Unknown []uint16
	// Words holds the reasons for some of the alive and the dead members; nil: none.
	Words map[uint16]string
}
