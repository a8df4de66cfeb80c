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

	want  bgp.State
	heard time.Time
	// spoken: want is what an agent asked for.
	spoken bool
	// beating is the last heartbeat.
	beating bool
	// confirmed: an agent spoke since the heartbeat came back and since the hold time last ran out.
	confirmed bool
}

// NewKeeper makes a keeper that announces nothing.
func NewKeeper(hold time.Duration) *Keeper { return &Keeper{hold: hold} }

// Set takes an agent's full wanted state. Agents repeat it: it is their sign of life as well.
func (k *Keeper) Set(now time.Time, want bgp.State) {
	k.want, k.heard, k.spoken = want.Clone(), now, true
	k.confirmed = k.beating
}

// Heartbeat takes whether the data plane forwards.
func (k *Keeper) Heartbeat(beating bool) {
	k.beating = beating
	if !beating {
		k.confirmed = false
	}
}

// Announce is what the speaker must say at the moment.
func (k *Keeper) Announce(now time.Time) bgp.State {
	out := k.want.Clone()
	if k.spoken && now.Sub(k.heard) > k.hold {
		k.confirmed = false
	}
	if !k.spoken || !k.beating || !k.confirmed {
		out.Routes = nil
	}
	return out
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
