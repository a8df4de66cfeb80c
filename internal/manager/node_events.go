package manager

import (
	"context"
	"fmt"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// planEvent notes that a node cannot apply its plan, or that it could again. Most reports say nothing new.
func (m *Manager) planEvent(node string, st *apiv1.NodeStatus) {
	if st == nil {
		return
	}
	before := m.reports.planError(node)
	switch now := st.GetError(); {
	case now != "" && now != before:
		m.objectEvent(lb.KindNode, node, reasonPlanRefused, "cannot apply its plan: %s", now)
	case now == "" && m.events.last(string(lb.KindNode), node, latchPlan, "").reason == reasonPlanRefused:
		m.objectEvent(lb.KindNode, node, reasonPlanObeyed, "could apply its plan")
	}
}

// suspicionEvent notes that a mux suspects itself, or does no more. The latch leaves out what was told.
func (m *Manager) suspicionEvent(node string, st *apiv1.NodeStatus) {
	switch {
	case st.GetSuspect():
		m.objectEvent(lb.KindNode, node, reasonMuxSuspect, "sees so much fail at once that it suspects itself: it keeps earlier verdicts and asks what others see")
	case st != nil && m.events.last(string(lb.KindNode), node, latchSuspicion, "").reason == reasonMuxSuspect:
		m.objectEvent(lb.KindNode, node, reasonMuxTrusted, "suspects itself no more: its own checks decide again")
	}
}

// hungerEvent notes that a node lacks what checks need, or does no more.
func (m *Manager) hungerEvent(node string, st *apiv1.NodeStatus) {
	switch {
	case st.GetStarved():
		m.objectEvent(lb.KindNode, node, reasonChecksStarved, "has no descriptors, ports or memory left for checks: some wait or are left out, which is no verdict")
	case st != nil && m.events.last(string(lb.KindNode), node, latchHunger, "").reason == reasonChecksStarved:
		m.objectEvent(lb.KindNode, node, reasonChecksFed, "had descriptors, ports and memory for all checks within the last minute")
	}
}

// crowdEvent notes that a node has no room for some checks by packets, or has it again.
func (m *Manager) crowdEvent(node string, st *apiv1.NodeStatus) {
	switch {
	case st.GetCrowded():
		m.objectEvent(lb.KindNode, node, reasonChecksCrowded, "has no room in its tables for some checks by packets: sockets make them instead, and those through tunnels wait")
	case st != nil && m.events.last(string(lb.KindNode), node, latchCrowd, "").reason == reasonChecksCrowded:
		m.objectEvent(lb.KindNode, node, reasonChecksFit, "has room in its tables for all checks by packets")
	}
}

// planError is the error that the node reported last.
func (r *reports) planError(node string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard[node].status.GetError()
}

// joined notes that a node has a new certificate.
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
