package manager

import (
	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/lb"
)

// speakerEvents records that a mux's BGP speaker process was replaced, and that a speaker of
// another build was kept. before is the previous report. A speaker that is kept for only one
// report, for instance until its routes are sent, is not recorded.
func (m *Manager) speakerEvents(node string, before, st *apiv1.NodeStatus) {
	was, now := speakerOf(before), speakerOf(st)
	if now == nil {
		return
	}
	told := m.events.last(string(lb.KindNode), node, latchSpeaker, "").reason == reasonSpeakerKept
	if was.GetPid() != 0 && now.GetPid() != 0 && was.GetPid() != now.GetPid() {
		m.objectEvent(lb.KindNode, node, reasonSpeakerReplaced, "BGP speaker %s, process %d, runs in place of %s, process %d", buildOf(now), now.GetPid(), buildOf(was), was.GetPid())
	}
	switch {
	case now.GetKept() != "" && was.GetKept() != "" && !told:
		m.objectEvent(lb.KindNode, node, reasonSpeakerKept, "keeps BGP speaker %s, process %d: %s", buildOf(now), now.GetPid(), now.GetKept())
	case now.GetKept() == "" && told:
		m.objectEvent(lb.KindNode, node, reasonSpeakerMatches, "BGP speaker %s, process %d, is of the agent's build", buildOf(now), now.GetPid())
	}
}

// speakerOf returns the BGP speaker of a report; nil if it has none.
func speakerOf(st *apiv1.NodeStatus) *apiv1.ProcessBuild {
	for _, p := range st.GetProcesses() {
		if p.GetProcess() == processSpeaker {
			return p
		}
	}
	return nil
}

// processSpeaker is ProcessBuild.process of a BGP speaker.
const processSpeaker = "speaker"

// buildOf names the build of a process: "v1.2.3 (0123abcd4567)".
func buildOf(p *apiv1.ProcessBuild) string {
	if p.GetCommit() == "" {
		return p.GetVersion()
	}
	return p.GetVersion() + " (" + p.GetCommit() + ")"
}
