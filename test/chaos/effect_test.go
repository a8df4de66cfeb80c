package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// effect returns how much of a fault's effect occurred since the fault began, in the unit of its
// kind. Zero comes with an error that explains why there is none yet.
type effect func(context.Context) (count int, err error)

// units names the counted effects of each kind.
var units = map[kind]string{
	killManager:     "processes ended",
	restartManager:  "processes ended",
	freezeManager:   "processes stopped",
	unplugManager:   "devices without a carrier",
	fillManager:     "failed writes in the manager's log",
	swapManager:     "answers of the other build to Version",
	partManagers:    "directions without a route",
	partFromNode:    "directions without a route",
	killMuxAgent:    "processes ended",
	freezeMuxAgent:  "processes stopped",
	swapMuxAgent:    "answers of the other build to a scrape",
	fillMux:         "failed writes in the agent's log",
	removeMuxPins:   "files removed",
	removeMuxRun:    "files removed",
	killSpeaker:     "sessions established by the next speaker",
	freezeSpeaker:   "routes withdrawn at the router",
	loseMux:         "routes withdrawn at the router",
	partNodes:       "directions without a route",
	killHostAgent:   "processes ended",
	freezeHostAgent: "processes stopped",
	swapHostAgent:   "answers of the other build to a scrape",
	fillHost:        "failed writes in the agent's log",
	removeHostPins:  "files removed",
	removeHostRun:   "files removed",
	moveGateway:     "neighbor entries with the new address",
	loseFrames:      "frames dropped",
	muteMux:         "frames dropped",
}

// tally is how often a kind of fault happened, and the sum of its effects.
type tally struct{ times, effects int }

// tallies holds the tallies of all kinds that happened.
type tallies map[kind]tally

// add counts a fault and its effect.
func (ts tallies) add(k kind, effects int) {
	t := ts[k]
	ts[k] = tally{t.times + 1, t.effects + effects}
}

// idle returns the kinds with fewer effects than faults, in order.
func (ts tallies) idle() []kind {
	var out []kind
	for k, t := range ts {
		if t.effects < t.times {
			out = append(out, k)
		}
	}
	return slices.Sorted(slices.Values(out))
}

// report logs them, a line for each kind.
func (ts tallies) report(t *testing.T) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(ts)) {
		t.Logf("%4d × %s: %d %s", ts[k].times, strings.TrimSuffix(string(k), ":"), ts[k].effects, units[k])
	}
}

// watchEffect returns the effect of a step that is about to happen. Its error explains why the step
// cannot have one yet.
func watchEffect(s step) (effect, error) {
	a := s.a
	switch s.kind {
	case killManager, restartManager:
		return endedProcess(a, "manager")
	case killMuxAgent, killHostAgent:
		return endedProcess(a, "agent")
	case freezeManager:
		return stoppedProcess(a, "manager")
	case freezeMuxAgent, freezeHostAgent:
		return stoppedProcess(a, "agent")
	case unplugManager:
		return withoutCarrier(a), nil
	case fillManager, fillMux, fillHost:
		return failedWrites(a)
	case swapManager:
		return otherManager(a), nil
	case swapMuxAgent, swapHostAgent:
		return otherAgent(a)
	case partManagers, partFromNode, partNodes:
		return withoutRoute(a, s.b)
	case removeMuxPins, removeHostPins:
		return filesRemoved(cluster.Pins(a))
	case removeMuxRun, removeHostRun:
		return filesRemoved(cluster.RunDir(a))
	case killSpeaker:
		return nextSpeaker(a)
	case freezeSpeaker, loseMux:
		return withdrawnRoutes(a)
	case moveGateway:
		return movedNeighbours(a)
	case loseFrames, muteMux:
		return droppedFrames(a), nil
	}
	return nil, fmt.Errorf("effect of %q: it is no fault", s.kind)
}

// TestEffects checks that each kind of fault has an effect with a unit, that it is zero if nothing
// happens, and that a kind without an effect is found.
func TestEffects(t *testing.T) {
	if _, err := cluster.Apply(t.Context(), echoYAML()); err != nil {
		t.Fatal(err)
	}
	await(t, "all to agree before anything happens", agree)
	for lane, kinds := range lanes {
		d := newDrawer(1, lane, cluster.Topology)
		for range kinds {
			s := d.next()
			if units[s.kind] == "" {
				t.Errorf("the effect of %q has no unit", s.kind)
			}
			if s.kind == loseFrames || s.kind == muteMux {
				continue // their rule does not exist yet
			}
			seen, err := watchEffect(s)
			if err != nil {
				t.Errorf("%v: %v", s, err)
				continue
			}
			if n, err := seen(t.Context()); n != 0 || err == nil {
				t.Errorf("%v did not happen and has the effect of %d %s, error %v", s, n, units[s.kind], err)
			}
		}
	}
	ts := tallies{}
	ts.add(loseFrames, 7)
	ts.add(muteMux, 0)
	ts.add(killSpeaker, 1)
	ts.add(killSpeaker, 0)
	if got, want := ts.idle(), []kind{killSpeaker, muteMux}; !slices.Equal(got, want) {
		t.Errorf("without effect are %q, want %q", got, want)
	}
}
