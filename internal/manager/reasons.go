package manager

// Reasons of events. Callers of Manager.event use one of them. docs/ops/events.md has the same
// table for operators.
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
	reasonAgentMissing       = "AgentMissing"
	reasonAgentPresent       = "AgentPresent"
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
	reasonCARotating         = "CARotating"
	reasonCARotated          = "CARotated"
	reasonCAWaiting          = "CAWaiting"
	reasonTokenNeeded        = "TokenNeeded"
	reasonTunnelsWaiting     = "TunnelSourcesWaiting"
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
	reasonHostsUnreached     = "HostsUnreached"
	reasonHostsReached       = "HostsReached"
	reasonHostsUnconfirmed   = "HostsUnconfirmed"
	reasonHostsConfirmed     = "HostsConfirmed"
	reasonAnswersLost        = "AnswersLost"
	reasonAnswersReturned    = "AnswersReturned"
	reasonSessionLost        = "BGPSessionLost"
	reasonSessionEstablished = "BGPSessionEstablished"
	reasonSpeakerKept        = "SpeakerKept"
	reasonSpeakerMatches     = "SpeakerMatches"
	reasonSpeakerReplaced    = "SpeakerReplaced"
	reasonVIPsWithheld       = "VIPsWithheld"
	reasonVIPsFit            = "VIPsFit"
	reasonChecksStarved      = "ChecksStarved"
	reasonChecksFed          = "ChecksFed"
	reasonChecksCrowded      = "ChecksCrowded"
	reasonMTUTooLarge        = "MTUTooLarge"
	reasonMTUFits            = "MTUFits"
	reasonChecksFit          = "ChecksFit"
	reasonLeaderChanged      = "LeaderChanged"
	reasonMemberJoined       = "MemberJoined"
	reasonMemberLeft         = "MemberLeft"
	reasonRestored           = "Restored"
	reasonManagerUp          = "ManagerUp"
	reasonManagerDown        = "ManagerDown"
	reasonEventsLost         = "EventsLost"
)

// kindManager is the kind of events of managers, which are not objects.
const kindManager = "Manager"

// Severities of events.
const (
	severityInfo    = "info"
	severityWarning = "warning"
)

// reason describes a reason of events.
type reason struct {
	name     string
	severity string
	// about lists the kinds of objects that have it.
	about string
	latch latch
	// repeats: it has a latch, but every event is recorded.
	repeats bool
	meaning string
}

// reasons lists all reasons.
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
	{reasonAgentMissing, severityWarning, "Service", latchAgents, false, "backends with rewrite host are on a machine without a host agent for 5 seconds: packets for them are lost"},
	{reasonAgentPresent, severityInfo, "Service", latchAgents, false, "such a machine has an agent, or no backend of the service is on it any more"},
	{reasonRingChanged, severityInfo, "Service", "", false, "backends that were dead for --down-after were taken out of the rings, or returned to them"},
	{reasonDrainBegan, severityInfo, "Service", "", false, "backends take no new flows any more"},
	{reasonDrainEnded, severityInfo, "Service", "", false, "draining backends left, or take flows again"},
	{reasonSlowStartBegan, severityInfo, "Service", "", false, "backends begin with a tenth of their weight"},
	{reasonSlowStartEnded, severityInfo, "Service", "", false, "backends have their whole weight"},
	{reasonPlaced, severityInfo, "Service", "", false, "a VIP got its muxes"},
	{reasonMoved, severityInfo, "Service", "", false, "a VIP moves to other muxes"},
	{reasonUnplaced, severityWarning, "Service", "", false, "a VIP has fewer muxes than it asks for; the message says why"},
	{reasonOverloaded, severityWarning, "Node", "", false, "a mux gets more packets than its capacity, and no other has room, or the services are on every mux"},
	{reasonKeysRotating, severityInfo, "Service", "", false, "muxes get a new key of cookies or connection ids"},
	{reasonKeysRotated, severityInfo, "Service", "", false, "what is new is made with the new key; the one before is still read for --key-rest"},
	{reasonKeysWaiting, severityWarning, "Service", "", false, "a change of keys waits for nodes for a minute; the message names them"},
	{reasonCARotating, severityInfo, "Manager", "", false, "the replacement of the CA began, or came to its next phase; the message has the phase"},
	{reasonCARotated, severityInfo, "Manager", "", false, "the CA was replaced; certificates of the former one are refused"},
	{reasonCAWaiting, severityWarning, "Manager", "", false, "a phase of the replacement of the CA waits for managers or nodes for a minute; the message names them"},
	{reasonTokenNeeded, severityWarning, "Node", "", false, "the node has a certificate of a CA that was replaced, and cannot connect: it needs a new join token"},
	{reasonTunnelsWaiting, severityWarning, "Network", "", false, "a change of tunnelSources, a new or a deleted Network waits for nodes for a minute; the message names them"},
	{reasonSNATExhausted, severityWarning, "Service", "", false, "a VIP has no ports left for outbound connections of its servers; told once a minute"},
	{reasonSNATLimited, severityWarning, "Service", "", false, "a server, or the tenant, has as many ports for outbound connections as its limit allows; told once a minute"},
	{reasonNodeJoined, severityInfo, "Node", "", false, "the node joined with a token"},
	{reasonCertificateRenewed, severityInfo, "Node, Manager", "", false, "a certificate was renewed before it expired"},
	{reasonNodeConnected, severityInfo, "Node", latchStream, false, "the node opened its stream"},
	{reasonNodeDisconnected, severityWarning, "Node", latchStream, false, "the node's stream ended, and it has no other; it goes on with its last plan"},
	{reasonPlanRefused, severityWarning, "Node", latchPlan, true, "the node reports a fault: it cannot apply its plan, or not all of it works; the message has its error"},
	{reasonPlanObeyed, severityInfo, "Node", latchPlan, false, "the node reports no fault any more"},
	{reasonPlanStale, severityWarning, "Node", latchPace, false, "the connected node has not obeyed its newest plan for 10 seconds"},
	{reasonPlanCurrent, severityInfo, "Node", latchPace, false, "such a node obeys its newest plan"},
	{reasonReportRefused, severityWarning, "Node", "", false, "the node sends reports that are larger than one of its role may have; they are left out"},
	{reasonMuxSuspect, severityWarning, "Node", latchSuspicion, false, "the mux suspects itself: so much failed at once that it keeps earlier verdicts and asks what others see"},
	{reasonMuxTrusted, severityInfo, "Node", latchSuspicion, false, "such a mux suspects itself no more"},
	{reasonHostsUnreached, severityWarning, "Node", latchPaths, true, "with health from host, the mux does not reach machines that it reached before, and checks their backends itself"},
	{reasonHostsReached, severityInfo, "Node", latchPaths, false, "such a mux reaches all machines again"},
	{reasonHostsUnconfirmed, severityWarning, "Node", latchConfirm, true, "with health from host, machines never answered the mux: that their backends can be reached is confirmed by no mux"},
	{reasonHostsConfirmed, severityInfo, "Node", latchConfirm, false, "such machines answered, or have no such backends any more"},
	{reasonAnswersLost, severityWarning, "Node", latchAnswers, true, "servers of the host get SYNs, and most answers do not leave by the uplink, or datagrams, and none does though they answered before: a firewall of the host drops them, they leave by another device, or the server sends none"},
	{reasonAnswersReturned, severityInfo, "Node", latchAnswers, false, "answers of such servers leave by the uplink again"},
	{reasonSessionLost, severityWarning, "Node", latchSession, true, "a mux lost its BGP session with a router; the message says which, and why"},
	{reasonSessionEstablished, severityInfo, "Node", latchSession, false, "the mux has the session again"},
	{reasonSpeakerKept, severityWarning, "Node", latchSpeaker, true, "the BGP speaker of a mux runs another build than the agent, and is not replaced, because a router would lose the routes; the message says which"},
	{reasonSpeakerMatches, severityInfo, "Node", latchSpeaker, false, "it runs the agent's build again"},
	{reasonSpeakerReplaced, severityInfo, "Node", "", false, "another BGP speaker runs on the mux, of another build or after the former one ended; the message has both"},
	{reasonVIPsWithheld, severityWarning, "Service", latchWithheld, true, "a mux or host has no room for VIPs of the service, because the tenant takes most of a table that is full; the message names node, VIPs and table"},
	{reasonVIPsFit, severityInfo, "Service", latchWithheld, false, "such a node has room for them again, or they are gone"},
	{reasonChecksStarved, severityWarning, "Node", latchHunger, false, "the node has no descriptors, ports or memory left for checks: some wait or are left out, and count for nothing"},
	{reasonChecksFed, severityInfo, "Node", latchHunger, false, "it has had them for a minute"},
	{reasonChecksCrowded, severityWarning, "Node", latchCrowd, false, "the node's tables have no room for some checks by packets: sockets make them, directly where they would go through a tunnel"},
	{reasonChecksFit, severityInfo, "Node", latchCrowd, false, "they have room for all again"},
	{reasonMTUTooLarge, severityWarning, "Node", latchMTU, true, "the MTU of the node's Network is larger than that of its interfaces: packets of that size are lost there"},
	{reasonMTUFits, severityInfo, "Node", latchMTU, false, "it is not any more"},
	{reasonLeaderChanged, severityInfo, "Manager", "", false, "the manager leads from now on"},
	{reasonMemberJoined, severityInfo, "Manager", "", false, "the manager became a member"},
	{reasonMemberLeft, severityWarning, "Manager", "", false, "the manager was removed"},
	{reasonRestored, severityWarning, "Manager", "", false, "the state was restored from a backup; revisions begin anew"},
	{reasonManagerUp, severityInfo, "Manager", latchPresence, false, "the manager is up"},
	{reasonManagerDown, severityWarning, "Manager", latchPresence, false, "the manager has not been up for 10 seconds, or was stopped"},
	{reasonEventsLost, severityWarning, "Manager, Tenant", "", false, "more happened at once than could be noted; the count says how much"},
}

// reasonsByName maps names to reasons.
var reasonsByName = func() map[string]*reason {
	out := make(map[string]*reason, len(reasons))
	for i := range reasons {
		out[reasons[i].name] = &reasons[i]
	}
	return out
}()
