// Package remote runs a bgp.Speaker in its own process, which outlives the mux agent (design
// section 9.5). The agent uses a unix socket to control it, and the process decides by itself how
// to act while the agent or the data plane is gone.
package remote

import (
	"time"

	"github.com/shuntlb/shunt/internal/bgp"
)

// Keeper decides which routes the speaker announces. It is pure: the caller passes the time.
//
// Routes are announced while three conditions hold: an agent has set a state, the last sign of life
// is within the hold time, and the data plane's heartbeat is good. Sessions stay up without routes.
// After routes were withdrawn for lack of an agent or a heartbeat, only the next sign of life of an
// agent restores them, because only the agent can check whether its tables are loaded.
type Keeper struct {
	// hold is how long routes outlive the agent's last sign of life.
	hold time.Duration

	// want is shared with its readers and never changed in place. generation counts its
	// replacements.
	want       bgp.State
	generation uint64
	heard      time.Time
	// spoken: want was set by an agent.
	spoken bool
	// beating is the last heartbeat.
	beating bool
	// confirmed: there was a sign of life since the heartbeat came back and since the hold time
	// last ran out.
	confirmed bool
}

// NewKeeper returns a keeper that announces nothing.
func NewKeeper(hold time.Duration) *Keeper { return &Keeper{hold: hold} }

// Set stores an agent's full wanted state, which the caller does not change afterwards. It is a
// sign of life, too.
func (k *Keeper) Set(now time.Time, want bgp.State) {
	if !k.spoken || !k.want.Equal(want) {
		k.want = want
		k.generation++
	}
	k.spoken = true
	k.aliveAt(now)
}

// Alive records an agent's sign of life for the state of a generation. It returns false, and
// changes nothing, if the keeper has another one; then the agent must send its state.
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

// Heartbeat records whether the data plane forwards.
func (k *Keeper) Heartbeat(beating bool) {
	k.beating = beating
	if !beating {
		k.confirmed = false
	}
}

// announcement identifies the result of Announce: equal ones mean equal states.
type announcement struct {
	generation uint64
	withheld   bool
}

// Announce returns the state that the speaker must announce at the moment, which is never changed
// in place, and its identity.
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

// Why returns the reason why no routes are announced; empty: they are.
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
