package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shuntlb/shunt/internal/lab"
)

// kind is a fault of one node, or of the link between two.
type kind string

// Faults of managers, and of the links to them.
const (
	killManager    kind = "kill -9"
	restartManager kind = "restart"
	freezeManager  kind = "freeze"
	unplugManager  kind = "unplug"
	fillManager    kind = "fill the disk of"
	swapManager    kind = "swap the build of"
	partManagers   kind = "part"
	partFromNode   kind = "part from a node:"
)

// Faults of muxes, and of their links to hosts.
const (
	killMuxAgent   kind = "kill -9 the agent of the mux"
	freezeMuxAgent kind = "freeze the agent of the mux"
	swapMuxAgent   kind = "swap the build of the agent of the mux"
	fillMux        kind = "fill the disk of the mux"
	removeMuxPins  kind = "remove the pins of the mux"
	removeMuxRun   kind = "remove the run directory of the mux"
	killSpeaker    kind = "kill -9 the speaker of the mux"
	freezeSpeaker  kind = "freeze the speaker of the mux"
	loseMux        kind = "lose the mux"
	partNodes      kind = "part from a host:"
)

// Faults of hosts.
const (
	killHostAgent   kind = "kill -9 the agent of the host"
	freezeHostAgent kind = "freeze the agent of the host"
	swapHostAgent   kind = "swap the build of the agent of the host"
	fillHost        kind = "fill the disk of the host"
	removeHostPins  kind = "remove the pins of the host"
	removeHostRun   kind = "remove the run directory of the host"
)

// Faults of the links of muxes and hosts.
const (
	moveGateway kind = "give another Ethernet address to the gateway of"
	loseFrames  kind = "lose one of ten frames"
	muteMux     kind = "lose all frames"
)

// lanes lists the faults that happen concurrently: at most one of each lane.
var lanes = [][]kind{
	{killManager, restartManager, freezeManager, unplugManager, fillManager, swapManager, partManagers, partFromNode},
	{killMuxAgent, freezeMuxAgent, swapMuxAgent, fillMux, removeMuxPins, removeMuxRun, killSpeaker, freezeSpeaker, loseMux, partNodes},
	{killHostAgent, freezeHostAgent, swapHostAgent, fillHost, removeHostPins, removeHostRun},
	{moveGateway, loseFrames, muteMux},
}

// untouched is the first mux, which has no faults.
const untouched = "mux1"

// step is one fault: its kind, its nodes, its duration, and the pause after it.
type step struct {
	kind kind
	a, b string
	// to selects the loss of frames to a instead of those from it.
	to          bool
	hold, pause time.Duration
}

// String describes the step for a log.
func (s step) String() string {
	text := string(s.kind) + " " + s.a
	if s.b != "" {
		text += " and " + s.b
	}
	switch {
	case s.kind != loseFrames && s.kind != muteMux:
	case s.to:
		text = string(s.kind) + " to " + s.a
	default:
		text = string(s.kind) + " from " + s.a
	}
	return fmt.Sprintf("%s for %s", text, s.hold)
}

// drawer draws the steps of one lane. They depend on the seed alone, and each kind happens once
// before any happens again.
type drawer struct {
	random   *rand.Rand
	topology lab.Topology
	kinds    []kind
	left     []kind
}

func newDrawer(seed uint64, lane int, topology lab.Topology) *drawer {
	return &drawer{random: rand.New(rand.NewPCG(seed, uint64(lane))), topology: topology, kinds: lanes[lane]}
}

// next draws a step.
func (d *drawer) next() step {
	if len(d.left) == 0 {
		d.left = slices.Clone(d.kinds)
		d.random.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	s := step{
		kind: d.left[0],
		hold: d.milliseconds(500, 6500), pause: d.milliseconds(0, 4000),
	}
	d.left = d.left[1:]
	members := named(lab.KindManager, d.topology.Managers)
	d.random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	mux := d.one(slices.DeleteFunc(named(lab.KindMux, d.topology.Muxes), func(name string) bool { return name == untouched }))
	host := d.one(named(lab.KindHost, d.topology.Hosts.Count))
	either := d.one([]string{mux, host})
	s.to = d.random.IntN(2) == 0
	switch s.kind {
	case partManagers:
		s.a, s.b = members[0], members[1]
	case partFromNode:
		s.a, s.b = members[0], either
	case partNodes:
		s.a, s.b = mux, host
	case killMuxAgent, freezeMuxAgent, swapMuxAgent, fillMux, removeMuxPins, removeMuxRun, killSpeaker, freezeSpeaker, loseMux, muteMux:
		s.a = mux
	case killHostAgent, freezeHostAgent, swapHostAgent, fillHost, removeHostPins, removeHostRun:
		s.a = host
	case moveGateway, loseFrames:
		s.a = either
	default:
		s.a = members[0]
	}
	return s
}

func (d *drawer) one(of []string) string { return of[d.random.IntN(len(of))] }

func (d *drawer) milliseconds(low, high int) time.Duration {
	return time.Duration(low+d.random.IntN(high-low)) * time.Millisecond
}

// TestSchedule checks that the seed determines the schedule, that each kind occurs, and that the
// mux of the long connections never does.
func TestSchedule(t *testing.T) {
	for lane, kinds := range lanes {
		a, b, c := newDrawer(1, lane, cluster.Topology), newDrawer(1, lane, cluster.Topology), newDrawer(2, lane, cluster.Topology)
		seen, touched, differ := map[kind]int{}, map[string]bool{}, false
		for range 40 * len(kinds) {
			s := a.next()
			if other := b.next(); s != other {
				t.Fatalf("lane %d: the same seed gives %v and %v", lane, s, other)
			}
			differ = differ || s != c.next()
			seen[s.kind]++
			touched[s.a], touched[s.b] = true, true
			if s.a == s.b {
				t.Errorf("lane %d: %v", lane, s)
			}
		}
		for _, k := range kinds {
			if seen[k] != 40 {
				t.Errorf("lane %d: %q happens %d times of %d", lane, k, seen[k], 40*len(kinds))
			}
		}
		if touched[untouched] || !differ {
			t.Errorf("lane %d: touches %v; another seed differs: %v", lane, touched, differ)
		}
		managers, muxes, hosts := named(lab.KindManager, 3), []string{"mux2", "mux3"}, []string{"host1", "host4"}
		nodes := [][]string{slices.Concat(managers, muxes, hosts), slices.Concat(muxes, hosts), hosts, slices.Concat(muxes, hosts)}[lane]
		for _, name := range nodes {
			if !touched[name] {
				t.Errorf("lane %d: nothing ever happens to %s", lane, name)
			}
		}
	}
}

// run breaks and mends by the lane's steps until ctx ends and each kind has happened once. It
// returns how often each happened and its effects. A fault lasts until it has had an effect. A
// fault that is active at the end is mended.
func run(ctx context.Context, t *testing.T, lane int, seed uint64) (tallies, error) {
	d := newDrawer(seed, lane, cluster.Topology)
	done := tallies{}
	for ctx.Err() == nil || len(done) < len(d.kinds) {
		s := d.next()
		t.Logf("%s: lane %d: %v", time.Now().Format("15:04:05.000"), lane, s)
		var seen effect
		if err := poll(t.Context(), func(context.Context) (err error) {
			seen, err = watchEffect(s)
			return err
		}); err != nil {
			return done, fmt.Errorf("%v: nothing to break: %w", s, err)
		}
		mend, err := inflict(t.Context(), s)
		if err != nil {
			return done, fmt.Errorf("%v: %w", s, err)
		}
		sleep(t.Context(), s.hold)
		effects := 0
		if err := poll(t.Context(), func(ctx context.Context) (err error) {
			effects, err = seen(ctx)
			return err
		}); err != nil {
			t.Errorf("%v: no effect within %s: %v", s, eventually, err)
		}
		done.add(s.kind, effects)
		if err := mend(t.Context()); err != nil {
			return done, fmt.Errorf("mend %v: %w", s, err)
		}
		sleep(ctx, s.pause)
	}
	return done, nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
