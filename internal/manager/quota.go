package manager

import (
	"net/netip"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Limits of callers who fail to prove who they are, for each source (levels).
const (
	// attemptsBurst: a mistaken program may fail for a minute, once a second, until anything is held against it. A /56 has four times
	// this, a /48 sixteen times, and so with attemptsPerSecond.
	attemptsBurst = 60
	// attemptsPerSecond is how fast failures are forgotten.
	attemptsPerSecond = 1
	// attemptSources bounds the prefixes that are remembered, about 1 MiB. When more fail at once some are forgotten: a source is never
	// refused for the failures of another one.
	attemptSources = 8192
	// attemptSweep is the least time between two searches for prefixes whose failures are all forgotten.
	attemptSweep = time.Second
)

// attempts counts failures by source, in bounded memory.
type attempts struct {
	mu      sync.Mutex
	sources map[netip.Prefix]attemptCount
	swept   time.Time
}

// attemptCount is how many failures are not forgotten, as of a time.
type attemptCount struct {
	failures float64
	at       time.Time
}

func newAttempts() *attempts { return &attempts{sources: map[netip.Prefix]attemptCount{}} }

// wait is how long the source at the address and port must wait until it is looked at again; 0 is not at all.
func (a *attempts) wait(from string, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waitLocked(levels(from), now)
}

func (a *attempts) waitLocked(of []netip.Prefix, now time.Time) (wait time.Duration) {
	for _, p := range of {
		factor := float64(levelFactor(p))
		if over := a.countLocked(p, now).failures - attemptsBurst*factor; over > 0 {
			wait = max(wait, 1, time.Duration(over/(attemptsPerSecond*factor)*float64(time.Second)))
		}
	}
	return wait
}

// fail counts a failure. first tells that it is the one by which the source has to wait.
func (a *attempts) fail(from string, now time.Time) (wait time.Duration, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := levels(from)
	first = a.waitLocked(of, now) == 0
	for _, p := range of {
		c := a.countLocked(p, now)
		if _, known := a.sources[p]; !known && len(a.sources) >= attemptSources {
			a.forgetLocked(now)
		}
		c.failures = min(c.failures+1, float64(attemptsBurst*levelFactor(p)+1))
		a.sources[p] = c
	}
	return a.waitLocked(of, now), first
}

// countLocked is the count of a prefix now.
func (a *attempts) countLocked(p netip.Prefix, now time.Time) attemptCount {
	c := a.sources[p]
	if passed := now.Sub(c.at); passed > 0 {
		c.failures = max(0, c.failures-passed.Seconds()*attemptsPerSecond*float64(levelFactor(p)))
	}
	c.at = now
	return c
}

// forgetLocked makes room for a prefix.
func (a *attempts) forgetLocked(now time.Time) {
	if now.Sub(a.swept) >= attemptSweep {
		a.swept = now
		for p := range a.sources {
			if a.countLocked(p, now).failures == 0 {
				delete(a.sources, p)
			}
		}
	}
	for p := range a.sources {
		if len(a.sources) < attemptSources {
			return
		}
		delete(a.sources, p) // any
	}
}

// dryRunsPerMinute is what a tenant with a quota of changes has of dry runs at least: each is computed as a change is, in the same queue, and
// keeps nothing. One a second is what a program does that looks before each step.
const dryRunsPerMinute = 60

// rates are the changes of tenants, or their dry runs, as token buckets: a tenant may make its quota of a minute at once, and gets it back
// evenly.
type rates struct {
	mu      sync.Mutex
	tenants map[string]*bucket
}

// bucket is how many changes are left, as of a time.
type bucket struct {
	left float64
	at   time.Time
}

// manyBuckets is how many there may be until those that are full are forgotten: they say nothing.
const manyBuckets = 1024

func newRates() *rates { return &rates{tenants: map[string]*bucket{}} }

// take uses up one of perMinute changes; lb.Unlimited is no limit. When there is none left it returns how long until there is.
func (r *rates) take(tenant string, perMinute uint32, now time.Time) time.Duration {
	if perMinute == lb.Unlimited {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.tenants[tenant]
	if b == nil {
		r.forgetLocked(now)
		b = &bucket{float64(perMinute), now}
		r.tenants[tenant] = b
	}
	perSecond := float64(perMinute) / 60
	if passed := now.Sub(b.at); passed > 0 {
		b.left += passed.Seconds() * perSecond
		b.at = now
	}
	b.left = min(b.left, float64(perMinute))
	if b.left < 1 {
		return max(1, time.Duration((1-b.left)/perSecond*float64(time.Second)))
	}
	b.left--
	return 0
}

// giveBack undoes a take whose request changed nothing.
func (r *rates) giveBack(tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.tenants[tenant]; b != nil {
		b.left++
	}
}

// forgetLocked drops buckets that have filled up, whatever their quota: a minute does that.
func (r *rates) forgetLocked(now time.Time) {
	if len(r.tenants) < manyBuckets {
		return
	}
	for tenant, b := range r.tenants {
		if now.Sub(b.at) >= time.Minute {
			delete(r.tenants, tenant)
		}
	}
}
