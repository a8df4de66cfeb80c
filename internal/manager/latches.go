package manager

import (
	"maps"
	"strings"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// latch names reasons of which an object, or an endpoint of it, has one at a time: an event that only repeats the last
// one of its latch is dropped, so that a new leader does not tell what everybody knows.
type latch string

const (
	latchHealth   latch = "health"
	latchService  latch = "endpoints"
	latchBackups  latch = "backups"
	latchStream   latch = "stream"
	latchPlan     latch = "plan"
	latchPace     latch = "pace"
	latchPresence latch = "presence"
	// latchAgents is of machines without a host agent, by host address.
	latchAgents latch = "agents"
	// latchSuspicion is of muxes that suspect themselves.
	latchSuspicion latch = "suspicion"
	// latchPaths is of muxes that do not reach hosts, latchConfirm of those that hosts never answered.
	latchPaths   latch = "paths"
	latchConfirm latch = "confirm"
	// latchAnswers is of hosts whose servers' answers do not leave by the uplink.
	latchAnswers latch = "answers"
	// latchSession is of BGP sessions of muxes, by the router's address.
	latchSession latch = "session"
	// latchSpeaker is of muxes whose BGP speaker runs another build than the agent.
	latchSpeaker latch = "speaker"
	// latchWithheld is of services' VIPs that nodes withhold, by node.
	latchWithheld latch = "withheld"
	// latchHunger is of nodes that lack what checks need.
	latchHunger latch = "hunger"
	// latchCrowd is of nodes whose tables have no room for checks by packets.
	latchCrowd latch = "crowd"
	// latchMTU is of nodes whose links are smaller than their Network says.
	latchMTU latch = "mtu"
)

// slotKey is a latch of an object, or of a part of it.
type slotKey struct {
	latch latch
	part  string
}

// tidings are what an event said, and when.
type tidings struct {
	reason, message string
	at              time.Time
}

// objectKey names what events are about: an object, or a manager.
type objectKey struct{ kind, name string }

// told are the last tidings of each latch of each object.
type told map[objectKey]map[slotKey]tidings

// of is empty for a latch of which nothing was told.
func (t told) of(kind, name string, l latch, part string) tidings {
	return t[objectKey{kind, name}][slotKey{l, part}]
}

// note keeps what an event says of its object. What is deleted has no latches.
func (t told) note(e *apiv1.Event) {
	key := objectKey{e.GetKind(), e.GetName()}
	if e.GetReason() == reasonDeleted {
		delete(t, key)
	}
	if e.GetReason() == reasonRestored {
		t.forgetManagers() // those of the cluster that the backup was made of
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

// forgetManagers drops who was up.
func (t told) forgetManagers() {
	for key, slots := range t {
		if key.kind == kindManager {
			delete(slots, slotKey{latchPresence, ""})
		}
	}
}

// parts are the parts of objects whose last event of a latch has a reason.
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

// partOf is the endpoint, the host, the router address or the node that an event is about: its message begins with it, a colon and a space. Other latches
// are of the whole object.
func partOf(l latch, message string) string {
	switch l {
	case latchHealth, latchService, latchBackups, latchAgents, latchSession, latchWithheld:
		part, _, _ := strings.Cut(message, ": ")
		return part
	}
	return ""
}
