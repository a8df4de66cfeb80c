package mux

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/shuntlb/shunt/internal/bgp"
)

// turnover is how a speaker of another build is replaced.
type turnover int

const (
	// turnoverNone leaves the speaker alone.
	turnoverNone turnover = iota
	// turnoverClose ends its sessions: there is no route that any router could lose.
	turnoverClose
	// turnoverKeep ends its process without closing sessions: every router keeps its routes (RFC 4724).
	turnoverKeep
)

// speakerTurnover decides whether the speaker is replaced by one of the agent's own build, and returns why it must wait; "" when it need not.
// want is the agent's state, have the speaker's status. A speaker without an announced route is replaced in any case, one with routes only when
// all routers that have them support graceful restart, and when they are the wanted ones: those of an agent that has just begun may not be yet.
func speakerTurnover(own bgp.Process, want bgp.State, have bgp.Status) (turnover, string) {
	p := have.Process
	if own.Version == "" || p.PID == 0 || p.Version == own.Version && p.Commit == own.Commit {
		return turnoverNone, ""
	}
	if len(have.Routes) == 0 && len(want.Routes) == 0 {
		return turnoverClose, ""
	}
	// A session that is not established loses nothing; its router may keep routes of the last one.
	var losing []string
	for _, peer := range have.Peers {
		if peer.State == "established" && !peer.GracefulRestart {
			losing = append(losing, peer.Address.String())
		}
	}
	switch {
	case len(losing) > 0:
		return turnoverNone, fmt.Sprintf("sessions without graceful restart (RFC 4724), whose routers would lose the routes: %s; it is replaced once the mux is drained", strings.Join(losing, ", "))
	case !samePrefixes(want.Routes, have.Routes):
		return turnoverNone, "its routes are not the wanted ones yet"
	}
	return turnoverKeep, ""
}

// samePrefixes returns true if both announce the same prefixes, in any order.
func samePrefixes(a, b []bgp.Route) bool {
	if len(a) != len(b) {
		return false
	}
	in := make(map[netip.Prefix]bool, len(a))
	for _, r := range a {
		in[r.Prefix] = true
	}
	for _, r := range b {
		if !in[r.Prefix] {
			return false
		}
	}
	return true
}

// turnOver replaces a speaker of another build, once in the life of the agent: the build that starts may be another one than this program's, when
// the file was replaced meanwhile. It returns the status that counts, and why the speaker is kept. speaking is held.
func (a *Agent) turnOver(ctx context.Context, want bgp.State, have bgp.Status) (bgp.Status, string, error) {
	how, kept := speakerTurnover(a.o.Build, want, have)
	if how == turnoverNone || a.turnedOver {
		return have, kept, nil
	}
	a.turnedOver = true
	a.o.Log.Info("replace the BGP speaker of another build", "pid", have.Process.PID, "version", have.Process.Version, "commit", have.Process.Commit, "routers_keep_routes", how == turnoverKeep)
	if err := a.o.Replace(ctx, how == turnoverKeep); err != nil {
		return have, kept, err
	}
	if err := a.o.Speaker.Set(ctx, want); err != nil {
		return have, kept, err
	}
	next, err := a.o.Speaker.Status(ctx)
	return next, kept, err
}
