package mux

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/shuntlb/shunt/internal/bgp"
	"github.com/shuntlb/shunt/internal/lb"
	"github.com/shuntlb/shunt/internal/notify"
)

// signOfLife is how often the speaker hears the wanted state again: it counts the hold time from the last word, and one that
// died is replaced within this.
const signOfLife = 500 * time.Millisecond

// said is what the speaker heard last, and when, with its status read after; the zero value is nothing that it is known to have
// heard.
type said struct {
	state bgp.State
	at    time.Time
}

// covers tells whether the speaker need not hear this now.
func (s said) covers(want bgp.State, now time.Time) bool {
	return !s.at.IsZero() && now.Sub(s.at) < signOfLife && s.state.Equal(want)
}

// Run tells the speaker, checks in the place of hosts that are silent, and does what is due by time, until ctx ends.
func (a *Agent) Run(ctx context.Context) {
	life := a.o.Clock.After(signOfLife)
	for {
		a.StandIn()
		a.Tick()
		a.Speak(ctx)
		var due <-chan time.Time
		if at := a.due(); !at.IsZero() {
			due = a.o.Clock.After(max(at.Sub(a.o.Clock.Now()), time.Millisecond))
		}
		select {
		case <-due:
		case <-ctx.Done():
			return
		case <-a.speak:
		case <-life:
			a.rereadPasswords()
			a.forgetSaid()
			life = a.o.Clock.After(signOfLife)
		}
	}
}

// rereadPasswords makes the speaker use passwords whose files changed. A change counts when two reads in a row return the same, because a file
// may be written in several steps. While a plan is being applied nothing is read: the plan reads the files itself.
func (a *Agent) rereadPasswords() {
	if !a.applying.TryLock() {
		return
	}
	defer a.applying.Unlock()
	if b := a.told.Node.BGP; b == nil || !slices.ContainsFunc(b.Peers, func(p lb.BGPPeer) bool { return p.PasswordFile != "" }) {
		return
	}
	peers, err := peersOf(a.told.Node.BGP, a.peers, a.o.ReadFile)
	if err != nil {
		if text := err.Error(); text != a.passwordFault {
			a.passwordFault = text
			a.o.Log.Warn("read BGP passwords", "error", err)
		}
		return
	}
	a.passwordFault = ""
	settled := reflect.DeepEqual(peers, a.reread)
	a.reread = peers
	if !settled || reflect.DeepEqual(peers, a.peers) {
		return
	}
	a.mu.Lock()
	a.peers = peers
	a.mu.Unlock()
	a.o.Log.Info("BGP passwords changed")
}

// forgetSaid makes the next word one that the speaker hears, though it heard the same just before.
func (a *Agent) forgetSaid() {
	a.speaking.Lock()
	defer a.speaking.Unlock()
	a.said = said{}
}

// Speak makes the speaker announce what is wanted at this moment, unless it heard the same within signOfLife. Nothing is said
// before a plan was applied: a restarted agent must not take back what it does not know yet.
func (a *Agent) Speak(ctx context.Context) {
	a.speaking.Lock()
	defer a.speaking.Unlock()
	a.mu.Lock()
	if !a.ready || a.left {
		a.mu.Unlock()
		return
	}
	want, _ := a.announcementLocked().state()
	a.mu.Unlock()
	if ctx.Err() != nil || a.said.covers(want, a.o.Clock.Now()) {
		return
	}
	began := a.o.Clock.Now()
	_, err := a.o.Ensure(ctx)
	if err == nil {
		// Read after Ensure, which may take long.
		a.mu.Lock()
		want, _ = a.announcementLocked().state()
		a.mu.Unlock()
		err = a.o.Speaker.Set(ctx, want)
	}
	status, statusErr := a.o.Speaker.Status(ctx)
	if err == nil {
		err = statusErr
	}
	kept := ""
	if err == nil {
		status, kept, err = a.turnOver(ctx, want, status)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil && ctx.Err() == nil && (a.speakerFault == nil || a.speakerFault.Error() != err.Error()) {
		a.o.Log.Error("bgp speaker", "error", err)
	}
	a.speakerFault = err
	a.said = said{}
	if err == nil {
		a.said = said{want, began}
	}
	if !sameStatus(a.status, status) || a.kept != kept {
		notify.Send(a.changed)
	}
	a.status, a.kept = status, kept
}
