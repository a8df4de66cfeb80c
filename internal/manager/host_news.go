package manager

import (
	"slices"
	"time"

	apiv1 "github.com/shuntlb/shunt/api/v1"
	"github.com/shuntlb/shunt/internal/clock"
)

// progressHold bounds the time for which an account of hosts that releases no mux is held back.
const progressHold = 3 * time.Millisecond

// hostAccount is the changes that the hosts of this member have yet to apply.
type hostAccount struct {
	// progress is nil if there is too much to send.
	progress *apiv1.HostProgress
	// newest is the newest revision that one of the hosts has yet to apply. bindings is the newest
	// revision that changed more than repair items of any host.
	newest, bindings int64
}

// hostNews decides when another member needs a new account of this member's hosts. The receiver
// holds a mux's change back while its account is older than the change, or names one of the
// change's endpoints. So an account that only adds endpoints of newer revisions releases nothing,
// and the next one, which reports that hosts applied them, replaces it. An account with new
// revisions of only repair items releases only changes of weights, and those only where no host of
// this member has the endpoint. It is sent no sooner than repairPace after the last one.
type hostNews struct {
	sent *apiv1.HostProgress // the receiver has this one; nil: none
	at   time.Time           // when it was sent
	// owed holds the endpoints of sent and of every account since.
	owed map[string]bool
	// due fires when an account has been held back long enough; nil if none is held back. until is
	// that time.
	due   <-chan time.Time
	until time.Time
	// ripe reports that due has fired.
	ripe bool
}

// worth reports whether the account must be sent now.
func (n *hostNews) worth(a hostAccount, c clock.Clock) bool {
	p, now := a.progress, c.Now()
	if p == nil || sameHosts(p, n.sent) {
		return false
	}
	if until := n.holds(a, now); until.After(now) {
		for _, e := range p.GetOwed() {
			n.owed[e] = true
		}
		if n.due == nil || until.Before(n.until) {
			n.due, n.until = c.After(until.Sub(now)), until
		}
		return false
	}
	*n = hostNews{sent: p, at: now, owed: make(map[string]bool, len(p.GetOwed()))}
	for _, e := range p.GetOwed() {
		n.owed[e] = true
	}
	return true
}

// holds returns the time until which the account is held back if nothing else happens, or zero if
// it is not held back.
func (n *hostNews) holds(a hostAccount, now time.Time) (until time.Time) {
	if n.sent == nil || n.ripe || a.progress.GetRevision() <= n.sent.GetRevision() || n.releases(a.progress) {
		return time.Time{}
	}
	if a.newest >= a.progress.GetRevision() {
		until = now.Add(progressHold)
	}
	if paced := n.at.Add(repairPace); a.bindings <= n.sent.GetRevision() && paced.After(until) {
		until = paced
	}
	return until
}

// releases reports whether hosts have applied an endpoint that an earlier account named.
func (n *hostNews) releases(p *apiv1.HostProgress) bool {
	for e := range n.owed {
		if _, still := slices.BinarySearch(p.GetOwed(), e); !still {
			return true
		}
	}
	return false
}

// ripen ends the time for which accounts are held back.
func (n *hostNews) ripen() { n.due, n.ripe = nil, true }
