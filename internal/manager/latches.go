package manager

import (
	"maps"
	"strings"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// latch names reasons that exclude each other: an object, or an endpoint of it, has one at a time.
// An event that repeats the last one of its latch is dropped, so that a new leader does not report
// known conditions again.
type latch string

const (
	latchHealth   latch = "health"
	latchService  latch = "endpoints"
	latchBackups  latch = "backups"
	latchStream   latch = "stream"
	latchPlan     latch = "plan"
	latchPace     latch = "pace"
	latchPresence latch = "presence"
	// latchAgents is for machines without a host agent, by host address.
	latchAgents latch = "agents"
	// latchSuspicion is for muxes that consider themselves isolated.
	latchSuspicion latch = "suspicion"
	// latchPaths is for muxes that do not reach hosts, latchConfirm for muxes that hosts never
	// answered.
	latchPaths   latch = "paths"
	latchConfirm latch = "confirm"
	// latchAnswers is for hosts whose servers' replies do not leave by the uplink.
	latchAnswers latch = "answers"
	// latchSession is for BGP sessions of muxes, by the router's address.
	latchSession latch = "session"
	// latchSpeaker is for muxes whose BGP speaker runs another build than the agent.
	latchSpeaker latch = "speaker"
	// latchWithheld is for services' VIPs that nodes withhold, by node.
	latchWithheld latch = "withheld"
	// latchHunger is for nodes without the resources for checks.
	latchHunger latch = "hunger"
	// latchCrowd is for nodes whose tables have no room for checks by packets.
	latchCrowd latch = "crowd"
	// latchMTU is for nodes with links below the MTU of their Network.
	latchMTU latch = "mtu"
)

// slotKey is a latch of an object, or of a part of it.
type slotKey struct {
	latch latch
	part  string
}

// tidings holds the reason, the message and the time of an event.
type tidings struct {
	reason, message string
	at              time.Time
}

// objectKey names the subject of events: an object, or a manager.
type objectKey struct{ kind, name string }

// told holds the last tidings of each latch of each object.
type told map[objectKey]map[slotKey]tidings

// of returns the last tidings of a latch, or empty tidings if it had no event.
func (t told) of(kind, name string, l latch, part string) tidings {
	return t[objectKey{kind, name}][slotKey{l, part}]
}

// note stores the tidings of an event. Deleted objects have no latches.
func (t told) note(e *apiv1.Event) {
	key := objectKey{e.GetKind(), e.GetName()}
	if e.GetReason() == reasonDeleted {
		delete(t, key)
	}
	if e.GetReason() == reasonRestored {
		t.forgetManagers() // managers of the cluster that the backup was made of
	}
	r := reasonsByName[e.GetReason()]
	if r == nil || r.latch == "" {
		return
	}
	if t[key] == nil {
		t[key] = map[slotKey]tidings{}
	}
	said := tidings{reason: r.name, at: e.GetTime().AsTime()}
	part := partOf(r.latch, e.GetMessage())
	if part != "" {
		said.message = e.GetMessage()
	}
	t[key][slotKey{r.latch, part}] = said
}

// forgetManagers removes the presence of all managers.
func (t told) forgetManagers() {
	for key, slots := range t {
		if key.kind == kindManager {
			delete(slots, slotKey{latchPresence, ""})
		}
	}
}

// parts returns the parts of objects whose last event of a latch has the given reason.
func (t told) parts(l latch, reason string) (out []objectPart) {
	for object, of := range t {
		for slot, said := range of {
			if slot.latch == l && said.reason == reason {
				out = append(out, objectPart{object, slot.part})
			}
		}
	}
	return out
}

// objectPart is a part of an object, as partOf names it.
type objectPart struct {
	objectKey
	part string
}

func (t told) clone() told {
	out := make(told, len(t))
	for key, of := range t {
		out[key] = maps.Clone(of)
	}
	return out
}

// partOf returns the endpoint, the host, the router address or the node that an event concerns. Its
// message begins with that part, a colon and a space. Other latches are for the whole object.
func partOf(l latch, message string) string {
	switch l {
	case latchHealth, latchService, latchBackups, latchAgents, latchSession, latchWithheld:
		part, _, _ := strings.Cut(message, ": ")
		return part
	}
	return ""
}
