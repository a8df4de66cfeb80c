package manager

import (
	"testing"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// TestSpeakerEvents: each replacement of a BGP speaker is an event. A kept speaker is reported
// once, unless it is kept for only one report.
func TestSpeakerEvents(t *testing.T) {
	s := newScribe(t)
	s.apply(crowd(1, 1, 1)...)
	var last *apiv1.NodeStatus
	report := func(version string, pid uint32, kept string) {
		st := &apiv1.NodeStatus{Processes: []*apiv1.ProcessBuild{{Process: "agent", Version: "new", Pid: 1}, {Process: "speaker", Version: version, Pid: pid, Kept: kept}}}
		s.m.speakerEvents("mux1", last, st)
		s.m.speakerEvents("mux1", st, nil)
		last = st
		s.clock.Advance(time.Minute)
		s.write()
	}
	report("old", 7, "")
	report("old", 7, "its routes are not the wanted ones yet")
	report("old", 7, "")
	report("old", 7, "sessions without graceful restart")
	report("old", 7, "sessions without graceful restart")
	report("old", 7, "sessions without graceful restart")
	report("new", 8, "")
	report("new", 8, "")
	report("new", 9, "") // the previous one crashed
	report("new", 0, "") // the speaker does not answer
	report("old", 11, "sessions without graceful restart")
	report("old", 11, "sessions without graceful restart")
	report("old", 11, "") // the agent is of its build
	s.expectEvents(eventFilter{kind: "Node"}, "Node mux1 SpeakerKept", "Node mux1 SpeakerReplaced", "Node mux1 SpeakerMatches",
		"Node mux1 SpeakerReplaced", "Node mux1 SpeakerKept", "Node mux1 SpeakerMatches")
}
