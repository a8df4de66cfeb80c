package manager

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// planEvent records that a node reports a fault, or no longer does. The node may have applied its
// plan, as one whose SNAT leases no manager confirms. The message contains the node's text.
func (m *Manager) planEvent(node string, st *apiv1.NodeStatus) {
	if st == nil {
		return
	}
	before := m.reports.planError(node)
	switch now := st.GetError(); {
	case now != "" && now != before:
		m.objectEvent(lb.KindNode, node, reasonPlanRefused, "reports a fault: %s", now)
	case now == "" && m.events.last(string(lb.KindNode), node, latchPlan, "").reason == reasonPlanRefused:
		m.objectEvent(lb.KindNode, node, reasonPlanObeyed, "reports no fault any more")
	}
}

// suspicionEvent records that a mux considers itself isolated, or no longer does. The latch drops
// repeated events.
func (m *Manager) suspicionEvent(node string, st *apiv1.NodeStatus) {
	switch {
	case st.GetSuspect():
		m.objectEvent(lb.KindNode, node, reasonMuxSuspect, "sees so much fail at once that it suspects itself: it keeps earlier verdicts and asks what others see")
	case st != nil && m.events.last(string(lb.KindNode), node, latchSuspicion, "").reason == reasonMuxSuspect:
		m.objectEvent(lb.KindNode, node, reasonMuxTrusted, "suspects itself no more: its own checks decide again")
	}
}

// pathEvents records changes of the hosts that a mux does not reach, of those that never answered
// it, and of the servers whose replies do not leave a host.
func (m *Manager) pathEvents(node string, before, st *apiv1.NodeStatus) {
	if st == nil {
		return
	}
	for _, of := range []struct {
		latch         latch
		bad, good     string
		was, now      []string
		words, relief string
	}{
		{latchPaths, reasonHostsUnreached, reasonHostsReached, before.GetUnreachedHosts(), st.GetUnreachedHosts(),
			"does not reach hosts %s, whose agents check backends: it checks these itself", "reaches all hosts again"},
		{latchConfirm, reasonHostsUnconfirmed, reasonHostsConfirmed, before.GetUnconfirmedHosts(), st.GetUnconfirmedHosts(),
			"got no answer to ICMP from hosts %s: that their backends can be reached is confirmed by their own agents alone", "every host answered"},
		{latchAnswers, reasonAnswersLost, reasonAnswersReturned, before.GetUnansweredServers(), st.GetUnansweredServers(),
			"gives SYNs or datagrams to servers whose answers do not leave by its uplink: %s; run shunt doctor --role host there", "answers of all servers leave by the uplink"},
	} {
		told := m.events.last(string(lb.KindNode), node, of.latch, "").reason == of.bad
		switch {
		case len(of.now) > 0 && (!told || !slices.Equal(of.was, of.now)):
			m.objectEvent(lb.KindNode, node, of.bad, of.words, some(of.now))
		case len(of.now) == 0 && told:
			m.objectEvent(lb.KindNode, node, of.good, "%s", of.relief)
		}
	}
}

// sessionEvents records BGP sessions that a mux lost since its last report, and those that it
// established again.
func (m *Manager) sessionEvents(node string, st *apiv1.NodeStatus) {
	if len(st.GetPeers()) == 0 {
		return
	}
	before := map[string]*apiv1.PeerStatus{}
	for _, p := range m.reports.statusOf(node).GetPeers() {
		before[p.GetAddress()] = p
	}
	for _, p := range st.GetPeers() {
		address, up := p.GetAddress(), p.GetState() == bgpEstablished
		if was := before[address]; was != nil && (p.GetLosses() > was.GetLosses() || was.GetState() == bgpEstablished && !up) {
			m.objectEvent(lb.KindNode, node, reasonSessionLost, "%s: BGP session was lost: %s", address, cmp.Or(p.GetReason(), "the speaker reports no reason"))
		}
		if up && m.events.last(string(lb.KindNode), node, latchSession, address).reason == reasonSessionLost {
			m.objectEvent(lb.KindNode, node, reasonSessionEstablished, "%s: BGP session is established again", address)
		}
	}
}

// withheldEvents records the services whose VIPs the node withholds, on each change, and those
// whose VIPs it no longer withholds.
func (m *Manager) withheldEvents(node string, st *apiv1.NodeStatus) {
	if st == nil {
		return
	}
	part := lb.Ref(lb.KindNode, node)
	type cause struct {
		table string
		held  bool
	}
	of := map[string]map[cause][]string{}
	for _, w := range st.GetWithheld() {
		if of[w.GetService()] == nil {
			of[w.GetService()] = map[cause][]string{}
		}
		c := cause{w.GetTable(), w.GetHeld()}
		of[w.GetService()][c] = append(of[w.GetService()][c], w.GetVip())
	}
	for service, causes := range of {
		var words []string
		for c, vips := range causes {
			fate := "not served"
			if c.held {
				fate = "served as before their last change"
			}
			words = append(words, fmt.Sprintf("table %s is full: VIPs %s are %s", c.table, some(vips), fate))
		}
		slices.Sort(words)
		message := part + ": " + strings.Join(words, "; ")
		if m.events.last(string(lb.KindService), service, latchWithheld, part).message != message {
			m.objectEvent(lb.KindService, service, reasonVIPsWithheld, "%s", message)
		}
	}
	for _, o := range m.events.withheldAt(part) {
		if of[o.name] == nil {
			m.objectEvent(lb.KindService, o.name, reasonVIPsFit, "%s: has room for all VIPs of the service", part)
		}
	}
}

// statusOf returns the last status of the node.
func (r *reports) statusOf(node string) *apiv1.NodeStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard[node].status
}

// bgpEstablished is the state of a session that carries routes (RFC 4271 section 8.2.2).
const bgpEstablished = "established"

// hungerEvent records that a node lacks resources for checks, or no longer does.
func (m *Manager) hungerEvent(node string, st *apiv1.NodeStatus) {
	switch {
	case st.GetStarved():
		m.objectEvent(lb.KindNode, node, reasonChecksStarved, "has no descriptors, ports or memory left for checks: some wait or are left out, which is no verdict")
	case st != nil && m.events.last(string(lb.KindNode), node, latchHunger, "").reason == reasonChecksStarved:
		m.objectEvent(lb.KindNode, node, reasonChecksFed, "had descriptors, ports and memory for all checks within the last minute")
	}
}

// crowdEvent records that a node has no room for some checks by packets, or has it again.
func (m *Manager) crowdEvent(node string, st *apiv1.NodeStatus) {
	switch {
	case st.GetCrowded():
		m.objectEvent(lb.KindNode, node, reasonChecksCrowded, "has no room in its tables for some checks by packets: sockets make them instead, directly where they would go through a tunnel")
	case st != nil && m.events.last(string(lb.KindNode), node, latchCrowd, "").reason == reasonChecksCrowded:
		m.objectEvent(lb.KindNode, node, reasonChecksFit, "has room in its tables for all checks by packets")
	}
}

// mtuEvent records that links of a node are smaller than the MTU of its Network, on each change.
func (m *Manager) mtuEvent(node string, before, st *apiv1.NodeStatus) {
	if st == nil {
		return
	}
	fault, told := st.GetMtuFault(), m.events.last(string(lb.KindNode), node, latchMTU, "").reason == reasonMTUTooLarge
	switch {
	case fault != "" && (!told || fault != before.GetMtuFault()):
		m.objectEvent(lb.KindNode, node, reasonMTUTooLarge, "has links that are smaller than its Network says: %s. Packets of that size are lost there", fault)
	case fault == "" && told:
		m.objectEvent(lb.KindNode, node, reasonMTUFits, "has links for the MTU of its Network")
	}
}

// planError returns the error in the last status of the node.
func (r *reports) planError(node string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard[node].status.GetError()
}

// joined records that a node has a new certificate.
func (m *Manager) joined(ctx context.Context, node, role string, token bool) {
	what, reason := "renewed its certificate", reasonCertificateRenewed
	if token {
		what, reason = "joined with a token", reasonNodeJoined
	}
	e := m.auditEntry(ctx, fmt.Sprintf("%s (%s) %s", lb.Ref(lb.KindNode, node), role, what))
	if token { // it has no certificate yet
		e.Who, e.Role = node, role
	}
	m.audited(e)
	m.objectEvent(lb.KindNode, node, reason, "%s from %s", what, host(e.GetFrom()))
}
