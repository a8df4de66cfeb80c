// Package remote runs a bgp.Speaker in a process of its own that outlives the mux agent (design section 9.5): the
// agent speaks to it over a unix socket, and it decides itself what to do while the agent or the data plane is gone.
package remote

import (
	"time"

	"github.com/shuntlb/shunt/internal/bgp"
)

// Keeper decides what the speaker announces. It is pure: every method takes the time.
//
// Routes are announced while three things hold: an agent has said what it wants, one was heard of within the hold
// time, and the data plane beats. Sessions stay up without routes. Once routes were taken back for lack of an agent
// or a heartbeat, only an agent's next word brings them back: it knows whether its tables are there.
type Keeper struct {
	// hold is how long routes outlive the agent's last word.
	hold time.Duration

	// want is shared with its readers: nothing changes it in place. generation counts its changes.
	want       bgp.State
	generation uint64
	heard      time.Time
	// spoken: want is what an agent asked for.
	spoken bool
	// beating is the last heartbeat.
	beating bool
	// confirmed: an agent spoke since the heartbeat came back and since the hold time last ran out.
	confirmed bool
}

// NewKeeper makes a keeper that announces nothing.
func NewKeeper(hold time.Duration) *Keeper { return &Keeper{hold: hold} }

// Set takes an agent's full wanted state, which the caller does not change afterwards. It is a sign of life as well.
func (k *Keeper) Set(now time.Time, want bgp.State) {
	if !k.spoken || !k.want.Equal(want) {
		k.want = want
		k.generation++
	}
	k.spoken = true
	k.aliveAt(now)
}

// Alive takes an agent's sign of life: its wanted state is that of a generation, still. It returns false, and changes nothing, if the keeper
// has another one: the agent must send its state.
func (k *Keeper) Alive(now time.Time, generation uint64) bool {
	if !k.spoken || generation != k.generation {
		return false
	}
	k.aliveAt(now)
	return true
}

func (k *Keeper) aliveAt(now time.Time) {
	k.heard = now
	k.confirmed = k.beating
}

// Heartbeat takes whether the data plane forwards.
func (k *Keeper) Heartbeat(beating bool) {
	k.beating = beating
	if !beating {
		k.confirmed = false
	}
}

// announcement names what Announce returns: equal ones name equal states.
type announcement struct {
	generation uint64
	withheld   bool
}

// Announce returns the state that the speaker must announce at the moment, which nobody changes, and its name.
func (k *Keeper) Announce(now time.Time) (bgp.State, announcement) {
	out, name := k.want, announcement{generation: k.generation}
	if k.spoken && now.Sub(k.heard) > k.hold {
		k.confirmed = false
	}
	if !k.spoken || !k.beating || !k.confirmed {
		out.Routes, name.withheld = nil, true
	}
	return out, name
}

// Why says in words why no routes are announced; empty when they are.
func (k *Keeper) Why(now time.Time) string {
	switch {
	case !k.spoken:
		return "no agent has spoken yet"
	case !k.beating:
		return "the data plane is not attached"
	case now.Sub(k.heard) > k.hold:
		return "the agent is away"
	case !k.confirmed:
		return "the agent has not confirmed the data plane yet"
	}
	return ""
}
