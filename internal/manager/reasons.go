package manager

// Reasons of events, one word each for what happened. Whoever calls Manager.event uses one of them; docs/ops/events.md
// has the same table for operators.
const (
	reasonApplied            = "Applied"
	reasonDeleted            = "Deleted"
	reasonQuotaRefused       = "QuotaRefused"
	reasonBackendDown        = "BackendDown"
	reasonBackendUp          = "BackendUp"
	reasonEndpointDown       = "EndpointDown"
	reasonEndpointUp         = "EndpointUp"
	reasonBackupsInUse       = "BackupsInUse"
	reasonBackupsIdle        = "BackupsIdle"
	reasonRingChanged        = "RingChanged"
	reasonDrainBegan         = "DrainBegan"
	reasonDrainEnded         = "DrainEnded"
	reasonSlowStartBegan     = "SlowStartBegan"
	reasonSlowStartEnded     = "SlowStartEnded"
	reasonPlaced             = "Placed"
	reasonMoved              = "Moved"
	reasonUnplaced           = "Unplaced"
	reasonOverloaded         = "Overloaded"
	reasonKeysRotating       = "KeysRotating"
	reasonKeysRotated        = "KeysRotated"
	reasonKeysWaiting        = "KeysWaiting"
	reasonSNATExhausted      = "SNATExhausted"
	reasonSNATLimited        = "SNATLimited"
	reasonNodeJoined         = "NodeJoined"
	reasonCertificateRenewed = "CertificateRenewed"
	reasonNodeConnected      = "NodeConnected"
	reasonNodeDisconnected   = "NodeDisconnected"
	reasonPlanRefused        = "PlanRefused"
	reasonPlanObeyed         = "PlanObeyed"
	reasonPlanStale          = "PlanStale"
	reasonPlanCurrent        = "PlanCurrent"
	reasonReportRefused      = "ReportRefused"
	reasonMuxSuspect         = "MuxSuspect"
	reasonMuxTrusted         = "MuxTrusted"
	reasonChecksStarved      = "ChecksStarved"
	reasonChecksFed          = "ChecksFed"
	reasonChecksCrowded      = "ChecksCrowded"
	reasonChecksFit          = "ChecksFit"
	reasonLeaderChanged      = "LeaderChanged"
	reasonMemberJoined       = "MemberJoined"
	reasonMemberLeft         = "MemberLeft"
	reasonRestored           = "Restored"
	reasonManagerUp          = "ManagerUp"
	reasonManagerDown        = "ManagerDown"
	reasonEventsLost         = "EventsLost"
)

// kindManager is the kind of events of managers, which are no objects.
const kindManager = "Manager"

// Severities of events.
const (
	severityInfo    = "info"
	severityWarning = "warning"
)

// reason says what an event's reason means.
type reason struct {
	name     string
	severity string
	// about are the kinds of objects that have it.
	about string
	latch latch
	// repeats: of its latch, but every one is told.
	repeats bool
	meaning string
}

// reasons are all there are.
var reasons = []reason{
	{reasonApplied, severityInfo, "every kind", "", false, "somebody created or changed the object; the message says who"},
	{reasonDeleted, severityInfo, "every kind", "", false, "somebody deleted the object; the message says who"},
	{reasonQuotaRefused, severityWarning, "Tenant", "", false, "a change was refused because of the tenant's quota"},
	{reasonBackendDown, severityWarning, "Service", latchHealth, true, "backends that no mux calls alive and one at least calls dead"},
	{reasonBackendUp, severityInfo, "Service", latchHealth, true, "backends that a mux calls alive again"},
	{reasonEndpointDown, severityWarning, "Service", latchService, true, "an endpoint has no healthy backend left"},
	{reasonEndpointUp, severityInfo, "Service", latchService, true, "such an endpoint has a healthy backend again"},
	{reasonBackupsInUse, severityWarning, "Service", latchBackups, true, "so few backends are healthy that backups take flows"},
	{reasonBackupsIdle, severityInfo, "Service", latchBackups, true, "backups take no new flows any more"},
	{reasonRingChanged, severityInfo, "Service", "", false, "backends that were dead for --down-after were taken out of the rings, or returned to them"},
	{reasonDrainBegan, severityInfo, "Service", "", false, "backends take no new flows any more"},
	{reasonDrainEnded, severityInfo, "Service", "", false, "draining backends left, or take flows again"},
	{reasonSlowStartBegan, severityInfo, "Service", "", false, "backends begin with a tenth of their weight"},
	{reasonSlowStartEnded, severityInfo, "Service", "", false, "backends have their whole weight"},
	{reasonPlaced, severityInfo, "Service", "", false, "a VIP got its muxes"},
	{reasonMoved, severityInfo, "Service", "", false, "a VIP moves to other muxes"},
	{reasonUnplaced, severityWarning, "Service", "", false, "a VIP has fewer muxes than it asks for; the message says why"},
	{reasonOverloaded, severityWarning, "Node", "", false, "a mux gets more packets than its capacity, and no other has room"},
	{reasonKeysRotating, severityInfo, "Service", "", false, "muxes get a new key of cookies or connection ids"},
	{reasonKeysRotated, severityInfo, "Service", "", false, "what is new is made with the new key; the one before is still read for --key-rest"},
	{reasonKeysWaiting, severityWarning, "Service", "", false, "a change of keys waits for nodes for a minute; the message names them"},
	{reasonSNATExhausted, severityWarning, "Service", "", false, "a VIP has no ports left for outbound connections of its servers; told once a minute"},
	{reasonSNATLimited, severityWarning, "Service", "", false, "a server, or the tenant, has as many ports for outbound connections as its limit allows; told once a minute"},
	{reasonNodeJoined, severityInfo, "Node", "", false, "the node joined with a token"},
	{reasonCertificateRenewed, severityInfo, "Node, Manager", "", false, "a certificate was renewed before it expired"},
	{reasonNodeConnected, severityInfo, "Node", latchStream, false, "the node opened its stream"},
	{reasonNodeDisconnected, severityWarning, "Node", latchStream, false, "the node's stream ended, and it has no other; it goes on with its last plan"},
	{reasonPlanRefused, severityWarning, "Node", latchPlan, true, "the node cannot apply its plan; the message has its error"},
	{reasonPlanObeyed, severityInfo, "Node", latchPlan, false, "the node could apply its plan again"},
	{reasonPlanStale, severityWarning, "Node", latchPace, false, "the connected node has not obeyed its newest plan for 10 seconds"},
	{reasonPlanCurrent, severityInfo, "Node", latchPace, false, "such a node obeys its newest plan"},
	{reasonReportRefused, severityWarning, "Node", "", false, "the node sends reports that are larger than one of its role may have; they are left out"},
	{reasonMuxSuspect, severityWarning, "Node", latchSuspicion, false, "the mux suspects itself: so much failed at once that it keeps earlier verdicts and asks what others see"},
	{reasonMuxTrusted, severityInfo, "Node", latchSuspicion, false, "such a mux suspects itself no more"},
	{reasonChecksStarved, severityWarning, "Node", latchHunger, false, "the node has no descriptors, ports or memory left for checks: some wait or are left out, and count for nothing"},
	{reasonChecksFed, severityInfo, "Node", latchHunger, false, "it has had them for a minute"},
	{reasonChecksCrowded, severityWarning, "Node", latchCrowd, false, "the node's tables have no room for some checks by packets: sockets make them, and those through tunnels wait"},
	{reasonChecksFit, severityInfo, "Node", latchCrowd, false, "they have room for all again"},
	{reasonLeaderChanged, severityInfo, "Manager", "", false, "the manager leads from now on"},
	{reasonMemberJoined, severityInfo, "Manager", "", false, "the manager became a member"},
	{reasonMemberLeft, severityWarning, "Manager", "", false, "the manager was removed"},
	{reasonRestored, severityWarning, "Manager", "", false, "the state was restored from a backup; revisions begin anew"},
	{reasonManagerUp, severityInfo, "Manager", latchPresence, false, "the manager is up"},
	{reasonManagerDown, severityWarning, "Manager", latchPresence, false, "the manager has not been up for 10 seconds, or was stopped"},
	{reasonEventsLost, severityWarning, "Manager", "", false, "more happened at once than could be noted; the count says how much"},
}

// reasonsByName finds a reason.
var reasonsByName = func() map[string]*reason {
	out := make(map[string]*reason, len(reasons))
	for i := range reasons {
		out[reasons[i].name] = &reasons[i]
	}
	return out
}()
