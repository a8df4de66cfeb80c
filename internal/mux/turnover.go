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
	// turnoverNone keeps the speaker.
	turnoverNone turnover = iota
	// turnoverClose closes its sessions, because no router could lose a route.
	turnoverClose
	// turnoverKeep ends its process without closing sessions, so that every router keeps its routes
	// (RFC 4724).
	turnoverKeep
)

// speakerTurnover decides whether the speaker is replaced by one of the agent's own build. It
// returns the reason to wait, or "" if there is none. want is the agent's state, have the speaker's
// status. A speaker without an announced route is always replaced. A speaker with routes is
// replaced only if all routers that have them support graceful restart, and the routes are the
// wanted ones, because an agent that has just started may not have all of them yet.
func speakerTurnover(own bgp.Process, want bgp.State, have bgp.Status) (turnover, string) {
	p := have.Process
	if own.Version == "" || p.PID == 0 || p.Version == own.Version && p.Commit == own.Commit {
		return turnoverNone, ""
	}
	if len(have.Routes) == 0 && len(want.Routes) == 0 {
		return turnoverClose, ""
	}
	// A session that is not established loses no routes; its router may keep those of the previous
	// session.
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

// samePrefixes reports whether both contain the same prefixes, in any order.
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

// turnOver replaces a speaker of another build, at most once in the agent's life, because the new
// one may have another build than this program, too, if the file was replaced meanwhile. It returns
// the speaker's current status, and why the speaker is kept. The caller holds speaking.
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
