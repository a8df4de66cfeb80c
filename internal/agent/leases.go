package agent

import (
	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// Leases is a node's part in leasing ports for outbound connections: a mux applies leases, a host
// requests them.
type Leases interface {
	// Begin starts another stream: requests without a response are lost.
	Begin()
	// Hear applies an update of leases, of DIPs that may request them, or of responses. An error
	// ends the stream.
	Hear(*apiv1.PlanUpdate) error
	// Says is notified when there is something to report.
	Says() <-chan struct{}
	// Say adds it to a report; false: there is nothing.
	Say(*apiv1.NodeReport) bool
	// Words returns the holders of ports in the node's tables.
	Words(*apiv1.SnatWordsQuestion) *apiv1.SnatWords
}

// noLeases is the error of a node that has no leases.
const noLeases = "this node leases no ports"

// ofLeases reports whether an update is one for Leases.
func ofLeases(up *apiv1.PlanUpdate) bool {
	return up.GetSnatLeases() != nil || up.GetSnatHolders() != nil || up.GetSnatAnswers() != nil
}
