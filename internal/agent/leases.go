package agent

import (
	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// Leases is a node's part in leasing ports for outbound connections: a mux obeys leases, a host asks for them.
type Leases interface {
	// Begin says that another stream began: what was said and not answered is lost.
	Begin()
	// Hear takes in an update of leases, of DIPs that may ask, or of answers. An error ends the stream.
	Hear(*apiv1.PlanUpdate) error
	// Says is poked when there is something to say.
	Says() <-chan struct{}
	// Say puts it into a report; false: there is nothing.
	Say(*apiv1.NodeReport) bool
	// Words answers who has which ports by the node's tables.
	Words(*apiv1.SnatWordsQuestion) *apiv1.SnatWords
}

// noLeases is the answer of a node that takes no part in them.
const noLeases = "this node leases no ports"

// ofLeases tells whether an update is one for Leases.
func ofLeases(up *apiv1.PlanUpdate) bool {
	return up.GetSnatLeases() != nil || up.GetSnatHolders() != nil || up.GetSnatAnswers() != nil
}
