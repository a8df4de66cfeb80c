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

// signOfLife is how often the wanted state is sent to the speaker even if it is unchanged. The
// speaker's hold time starts with each such message, and a dead speaker is replaced within this
// time.
const signOfLife = 500 * time.Millisecond

// said is the last state that the speaker received, and when. Its status was read after that. The
// zero value means that the speaker's state is unknown.
type said struct {
	state bgp.State
	at    time.Time
}

// covers reports whether the speaker need not receive want now.
func (s said) covers(want bgp.State, now time.Time) bool {
	return !s.at.IsZero() && now.Sub(s.at) < signOfLife && s.state.Equal(want)
}

// Run synchronizes the speaker, checks members whose hosts are silent, and applies changes that are
// due by time, until ctx ends.
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

// rereadPasswords passes passwords to the speaker whose files changed. A change counts when two
// reads in a row return the same, because a file may be written in several steps. While a plan is
// being applied nothing is read, because the plan reads the files itself.
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

// forgetSaid makes the next Speak send the state even if the speaker just received the same.
func (a *Agent) forgetSaid() {
	a.speaking.Lock()
	defer a.speaking.Unlock()
	a.said = said{}
}

// Speak sends the wanted state to the speaker, unless it received the same within signOfLife. It
// sends nothing before a plan was applied, because a restarted agent must not withdraw routes that
// it does not know yet.
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
		// Compute it again, because Ensure may take long.
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
