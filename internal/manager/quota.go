package manager

import (
	"net/netip"
	"sync"
	"time"

	"github.com/shuntlb/shunt/internal/lb"
)

// Limits of callers who fail to authenticate, for each source (levels).
const (
	// attemptsBurst is the number of failures that a source may have without delay: a misconfigured
	// program may fail once a second for a minute. A /56 has four times as many, a /48 sixteen
	// times. The same factors apply to attemptsPerSecond.
	attemptsBurst = 60
	// attemptsPerSecond is the rate at which failures expire.
	attemptsPerSecond = 1
	// attemptSources is the maximum number of stored prefixes, about 1 MiB. If more fail at a time,
	// some are evicted, because a source must never be refused for the failures of another one.
	attemptSources = 8192
	// attemptSweep is the minimum time between two searches for prefixes whose failures have all
	// expired.
	attemptSweep = time.Second
)

// attempts counts failures by source, in bounded memory.
type attempts struct {
	mu      sync.Mutex
	sources map[netip.Prefix]attemptCount
	swept   time.Time
}

// attemptCount is the number of unexpired failures at a time.
type attemptCount struct {
	failures float64
	at       time.Time
}

func newAttempts() *attempts { return &attempts{sources: map[netip.Prefix]attemptCount{}} }

// wait returns how long the source with the address and port must wait until its credentials are
// checked again; 0: it need not wait.
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

// fail counts a failure. first reports whether it is the one after which the source must wait.
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

// countLocked returns the present count of a prefix.
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

// dryRunsPerMinute is the minimum rate of dry runs of a tenant with a quota of changes, because
// each is computed like a change, in the same queue, and stores nothing. One a second is enough for
// a program that does a dry run before each step.
const dryRunsPerMinute = 60

// rates holds the changes of tenants, or their dry runs, as token buckets: a tenant may use its
// quota of a minute in one burst, and gets it back evenly.
type rates struct {
	mu      sync.Mutex
	tenants map[string]*bucket
}

// bucket is the number of changes left at a time.
type bucket struct {
	left float64
	at   time.Time
}

// manyBuckets is the number of buckets from which full ones are removed, because a full bucket
// holds no information.
const manyBuckets = 1024

func newRates() *rates { return &rates{tenants: map[string]*bucket{}} }

// take uses one of perMinute changes; lb.Unlimited means no limit. If none is left, it returns the
// time until one is.
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

// giveBack reverts a take whose request changed nothing.
func (r *rates) giveBack(tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.tenants[tenant]; b != nil {
		b.left++
	}
}

// forgetLocked removes buckets unused for a minute, which are full with any quota.
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
